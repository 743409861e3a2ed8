/* Numbers as text. printf's %f follows the host's locale (a decimal comma), so these functions do
 * not use it.
 */
#ifndef MHAI_RENDER_NUMBER_H
#define MHAI_RENDER_NUMBER_H

enum { MHAI_NUMBER_BYTES = 40 };

/* Write exactly `decimals` (0..9) decimals, rounded half away from zero; never "-0.00". Values
 * beyond 9e8 have the short form; values that are not finite are "nan", "inf", "-inf". */
void mhai_number_fixed(double value, int decimals, char text[MHAI_NUMBER_BYTES]);

/* Write `digits` (1..6) significant digits, without trailing zeros: "0.25", "12", "1.5e-7". */
void mhai_number_short(double value, int digits, char text[MHAI_NUMBER_BYTES]);

/* Write a number for the cells of a map whose largest magnitude is `greatest`: a few characters, in
 * the same format for all cells.
 */
void mhai_number_cell(double value, double greatest, char text[MHAI_NUMBER_BYTES]);

#endif
