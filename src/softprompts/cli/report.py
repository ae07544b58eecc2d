"""The command `softprompts report`."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from ..analysis.folder_report import report
from ..analysis.summary_page import markdown
from .command import make_parser, output_folder
from .output import print_result

EXAMPLES = """softprompts report runs/cohort                    # writes summary.html and .md there
  softprompts report runs/study --output results/study
  softprompts report runs/cohort --against prompt-tuning --json"""


def main(argv: Sequence[str]) -> int:
    """Write one page about a run, a cohort or a study: tables, tests, learning curves, settings."""
    options = _parser().parse_args(argv)
    summary = report(options.folder, output=options.output, against=options.against)
    tables = markdown({**summary, "machines": [], "common": {}, "settings": {}}, summary["title"])
    page = summary["files"][0]
    text = f"{tables}\nthe page is {page}; Markdown and JSON versions are beside it"
    return print_result(options, summary, text)


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("report", EXAMPLES, main.__doc__)
    parser.add_argument(
        "folder", metavar="FOLDER", type=Path, help="the folder that tune or study run wrote"
    )
    parser.add_argument(
        "--output",
        metavar="DIR",
        type=output_folder,
        help="the folder for the page (default: the folder itself)",
    )
    parser.add_argument(
        "--against",
        metavar="ARM",
        help="compare all arms with this one (default: the best of each column)",
    )
    return parser
