"""Pages of the program's subcommands, from the output of `multihead help SUBCOMMAND`."""
import html
import os
import re
import subprocess

PROGRAM = os.environ.get("MULTIHEAD", os.path.join(os.path.dirname(__file__), "../../build/multihead"))
OPTION = re.compile(r"^ {2,6}((?:-\w, )?(--[\w-]+)(?: \S+)*?)(?:\n {26}| {2,})(\S.*(?:\n {26}.*)*)", re.M)


def printed(*topic):
    return subprocess.run([PROGRAM, "help", *topic], capture_output=True, text=True, check=True).stdout


def subcommands():
    """[(name, purpose)]"""
    overview = printed().split("\nSubcommands:\n")[1].split("\n\n")[0]
    return re.findall(r"^  (\w+) +(.+)$", overview, re.M)


def options(text):
    """[(syntax, name, description)] from a section of a help text."""
    return [(typed, name, " ".join(what.split())) for typed, name, what in OPTION.findall(text)]


def page(name):
    """HTML of a subcommand, and (anchor, option, description) of its options."""
    title, *parts = printed(name).rstrip("\n").split("\n\n")
    out, found = [f"<h1>{html.escape(title)}</h1>"], []
    for part in parts:
        heading, _, body = part.partition("\n")
        if heading.endswith(":") and body.startswith("  ") and not options(body):
            out.append(f"<h2>{html.escape(heading[:-1])}</h2>\n<pre><code>{html.escape(body)}</code></pre>")
        elif heading.endswith(":") and options(body):
            rows = options(body)
            found += [(option[2:], option, what) for _, option, what in rows]
            out.append(f"<h2>{html.escape(heading[:-1])}</h2>\n<dl>" + "\n".join(
                f'<dt id="{option[2:]}"><code>{html.escape(typed)}</code></dt><dd>{html.escape(what)}</dd>'
                for typed, option, what in rows) + "</dl>")
        elif "\n  " in part:
            out.append(f"<pre><code>{html.escape(part)}</code></pre>")
        else:
            out.append(f"<p>{html.escape(part)}</p>")
    return "\n".join(out), found
