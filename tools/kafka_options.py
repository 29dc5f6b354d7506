"""Writes the table of docs/coming-from-kafka.md from penstock.spark.kafka_options.

python tools/kafka_options.py [--check]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from penstock.spark.kafka_options import CLIENT_SETTINGS, SOURCE_AND_SINK, KafkaOption

PAGE = Path(__file__).resolve().parents[1] / "docs" / "coming-from-kafka.md"
TABLES = {"options": SOURCE_AND_SINK, "settings": CLIENT_SETTINGS}


def row(option: KafkaOption) -> str:
    where = {"both": "source, sink"}.get(option.where, option.where)
    ours = f"`{option.ours}`" if option.ours else "refused"
    return f"| `{option.name}` | {where} | {ours} | {option.advice.replace('|', chr(92) + '|')} |"


def table(options: tuple[KafkaOption, ...]) -> str:
    head = ["| Kafka | of the | here | |", "|---|---|---|---|"]
    return "\n".join([*head, *map(row, options)])


def page(text: str) -> str:
    """The page with its tables as the code has them."""
    for name, options in TABLES.items():
        start, end = f"<!-- {name} -->\n", f"\n<!-- end of {name} -->"
        before, _, rest = text.partition(start)
        _, _, after = rest.partition(end)
        text = f"{before}{start}{table(options)}{end}{after}"
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fail if the page differs")
    text = PAGE.read_text(encoding="utf-8")
    made = page(text)
    if made == text:
        return 0
    if parser.parse_args().check:
        print(f"{PAGE.name} differs from the code: python tools/kafka_options.py", file=sys.stderr)
        return 1
    PAGE.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
