import argparse
from pathlib import Path

from ..analysis.folder_report import report
from ..analysis.summary_page import markdown
from .command import action, argument, output_folder
from .output import print_result


@action(
    "report",
    """softprompts report runs/cohort                    # writes summary.html and .md there
  softprompts report runs/study --output results/study
  softprompts report runs/cohort --against prompt-tuning --json""",
    argument("folder", metavar="FOLDER", type=Path, help="the folder that tune or study run wrote"),
    argument(
        "--output",
        metavar="DIR",
        type=output_folder,
        help="the folder for the page (default: the folder itself)",
    ),
    argument(
        "--against",
        metavar="ARM",
        help="compare all arms with this one (default: the best of each column)",
    ),
)
def main(options: argparse.Namespace) -> int:
    """Write one page about a run, a cohort or a study: tables, tests, learning curves, settings."""
    summary = report(options.folder, output=options.output, against=options.against)
    tables = markdown({**summary, "machines": [], "common": {}, "settings": {}}, summary["title"])
    page = summary["files"][0]
    text = f"{tables}\nthe page is {page}; Markdown and JSON versions are beside it"
    return print_result(options, summary, text)
