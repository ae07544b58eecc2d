"""Names of tasks as papers and figures write them."""

from collections import Counter
from collections.abc import Iterable

_NAMES = """
agnews AG News|anli αNLI|anli_r1 ANLI R1|anli_r2 ANLI R2|anli_r3 ANLI R3|bioasq BioASQ|boolq BoolQ
|cb CB|cnn_dailymail CNN/DailyMail|cola CoLA|common_gen CommonGen|copa COPA|cosmosqa CosmosQA|cr CR
|cxc_sts CxC|dart DART|doc_nli DocNLI|drop DROP|duorc DuoRC|e2e_nlg E2E|hellaswag HellaSwag
|hotpot_qa HotpotQA|imdb IMDb|mnli MNLI|mnli_mismatched MNLI mismatched|mr MR|mrpc MRPC
|multi_news Multi-News|multirc MultiRC|natural_questions Natural Questions|news_qa NewsQA|paws PAWS
|piqa PIQA|qnli QNLI|qqp QQP|race RACE|record ReCoRD|relation_extraction RE|rte RTE|samsum SAMSum
|schema_guided_dialog SGD|search_qa SearchQA|sentiment140 Sentiment140|snli SNLI
|social_iqa Social IQa|squad SQuAD|sst2 SST-2|sst5 SST-5|stsb STS-B|textbookqa TextbookQA|trec TREC
|trivia_qa TriviaQA|wic WiC|wiki_lingua WikiLingua|winogrande WinoGrande|wmt14_en_de WMT14 En-De
|wmt14_en_fr WMT14 En-Fr|wmt16_en_ro WMT16 En-Ro|wsc WSC|xsum XSum|yelp2 Yelp-2|yelp5 Yelp-5
"""
NAMES = dict(entry.strip().split(" ", 1) for entry in _NAMES.replace("\n", "").split("|"))


def plain_names(tasks: Iterable[str]) -> dict[str, str]:
    """The plain name of each task, such as SQuAD for spot_sources/squad; mixtures are joined by +.

    Tasks that would get the same name (RTE of GLUE and of SuperGLUE) keep their full names, and so
    do tasks without a plain name.
    """
    plain = {task: "+".join(map(_plain, task.split("+"))) for task in tasks}
    count = Counter(plain.values())
    return {task: name if count[name] == 1 else task for task, name in plain.items()}


def _plain(task: str) -> str:
    group, _, name = task.rpartition("/")
    return NAMES.get(name, task) if group else task
