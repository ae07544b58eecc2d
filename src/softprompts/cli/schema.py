"""The command `softprompts schema`: JSON Schemas of configuration files."""

import json
from collections.abc import Sequence

from ..config import Schema
from ..config.json_schema import run_schema
from ..study.config import study_schema
from .command import make_parser

EXAMPLES = """softprompts schema run > run.schema.json
  softprompts schema study > study.schema.json
  # then, at the top of a YAML file, for editors with a YAML language server:
  # yaml-language-server: $schema=run.schema.json"""
SCHEMAS = {"run": run_schema, "study": study_schema}


def main(argv: Sequence[str]) -> int:
    """Print the JSON Schema of run files (tune --config) or of study files."""
    parser = make_parser("schema", EXAMPLES, main.__doc__)
    parser.add_argument("file", metavar="FILE", choices=list(SCHEMAS), help="run or study")
    schema: Schema = SCHEMAS[parser.parse_args(argv).file]()
    print(json.dumps(schema, indent=1, ensure_ascii=False))
    return 0
