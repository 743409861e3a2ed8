/* Mark memory that AddressSanitizer must treat as inaccessible. No-ops without AddressSanitizer. */
#ifndef MHAI_POISON_H
#define MHAI_POISON_H

#if defined(__SANITIZE_ADDRESS__)
#define MHAI_HAVE_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define MHAI_HAVE_ASAN 1
#endif
#endif

#ifdef MHAI_HAVE_ASAN
#include <sanitizer/asan_interface.h>
enum { MHAI_RED_ZONES = 1 };
#define MHAI_POISON(at, bytes) __asan_poison_memory_region(at, bytes)
#define MHAI_UNPOISON(at, bytes) __asan_unpoison_memory_region(at, bytes)
#else
enum { MHAI_RED_ZONES = 0 };
#define MHAI_POISON(at, bytes) ((void)(at), (void)(bytes))
#define MHAI_UNPOISON(at, bytes) ((void)(at), (void)(bytes))
#endif

#endif
