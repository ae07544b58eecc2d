"""The command `softprompts schema`: JSON Schemas of configuration files."""

import argparse
import json

from ..config.json_schema import run_schema
from ..study.config import study_schema
from .command import action, argument

SCHEMAS = {"run": run_schema, "study": study_schema}


@action(
    "schema",
    """softprompts schema run > run.schema.json
  softprompts schema study > study.schema.json
  # then, at the top of a YAML file, for editors with a YAML language server:
  # yaml-language-server: $schema=run.schema.json""",
    argument("file", metavar="FILE", choices=list(SCHEMAS), help="run or study"),
)
def main(options: argparse.Namespace) -> int:
    """Print the JSON Schema of run files (tune --config) or of study files."""
    print(json.dumps(SCHEMAS[options.file](), indent=1, ensure_ascii=False))
    return 0
