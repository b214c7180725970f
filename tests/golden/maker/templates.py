"""Chat templates rendered by transformers: one construct each (constructs.py), and whole chats (chats/)."""
import datetime
import json

from transformers.utils import chat_template_utils

from . import constructs

NOW = 1751605567  # 2025-07-04 05:06:07 UTC


class FixedClock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(NOW, datetime.timezone.utc).replace(tzinfo=None)


def render(template, variables):
    """The rendering, or the error's text."""
    chat_template_utils.datetime = FixedClock
    variables = dict(variables)
    messages = variables.pop("messages", [])
    try:
        rendered, _ = chat_template_utils.render_jinja_template([messages], chat_template=template, **variables)
        return dict(output=rendered[0])
    except Exception as e:
        return dict(error=f"{type(e).__name__}: {e}")


def write(path, entries) -> None:
    lines = ",\n".join(json.dumps(e, ensure_ascii=False) for e in entries)
    path.write_text(f"[\n{lines}\n]\n")


def make(here) -> None:
    out = here / "templates"
    entries = []
    for template in constructs.TEMPLATES:
        entries.append(dict(template=template, **render(template, constructs.VARIABLES)))
    write(out / "constructs.json", entries)
    (out / "variables.json").write_text(json.dumps(constructs.VARIABLES, ensure_ascii=False, indent=1) + "\n")
    print(len(entries), "constructs,", sum("error" in e for e in entries), "of them errors")

    chats = json.loads((out / "chats.json").read_text())
    renderings = []
    for path in sorted(out.glob("*.jinja")):
        for i, chat in enumerate(chats):
            variables = dict(bos_token="<s>", eos_token="</s>") | chat
            renderings.append(dict(template=path.name, chat=i, **render(path.read_text(), variables)))
    write(out / "renderings.json", renderings)
    print(len(renderings), "renderings,", sum("error" in r for r in renderings), "of them errors")
