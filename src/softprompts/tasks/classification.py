"""Text classification tasks, and SPoT's sentiment group."""

from .task_definition import classification

SENTIMENT = ("negative", "positive")
STARS = ("terrible", "bad", "okay", "good", "great")
TREC = {
    "ABBR": "abbreviation",
    "ENTY": "entity",
    "DESC": "description",
    "HUM": "human",
    "LOC": "location",
    "NUM": "number",
}
"""In the order of the numbers on the Hub."""
NEWS = ("world", "sports", "business", "technology")
TEST = {"validation": "test"}
"""A dataset without a validation split is evaluated on its test split."""

DEFINITIONS = [
    classification(
        "textcls/agnews", "fancyzhx/ag_news", ("text",), NEWS, word="ag_news", splits=TEST
    ),
    classification(
        "textcls/trec",
        "CogComp/trec",
        ("text",),
        tuple(TREC.values()),
        label="coarse",
        aliases={"coarse": "coarse_label"},
        label_names=TREC | {str(number): word for number, word in enumerate(TREC.values())},
        splits=TEST,
    ),
    classification(
        "textcls/imdb", "stanfordnlp/imdb", ("text",), SENTIMENT, word="imdb_reviews", splits=TEST
    ),
    classification(
        "textcls/mr",
        "cornell-movie-review-data/rotten_tomatoes",
        ("sentence",),
        SENTIMENT,
        aliases={"sentence": "text"},
    ),
    classification(
        "textcls/sst5", "SetFit/sst5", ("sentence",), STARS, aliases={"sentence": "text"}
    ),
    classification(
        "textcls/cr", "SetFit/SentEval-CR", ("text",), SENTIMENT, aliases={"text": "sentence"}
    ),
    classification("textcls/yelp5", "Yelp/yelp_review_full", ("text",), STARS, splits=TEST),
    classification(
        "spot_sources/yelp2",
        "fancyzhx/yelp_polarity",
        ("text",),
        SENTIMENT,
        word="yelp_polarity_reviews",
        splits=TEST,
    ),
    classification(
        "sentiment/sentiment140",
        "stanfordnlp/sentiment140",
        ("text",),
        ("negative", "neutral", "positive"),
        label="sentiment",
        label_names={"0": "negative", "2": "neutral", "4": "positive"},
        splits=TEST,
    ),
]
