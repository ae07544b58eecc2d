"""Bag-of-words classifiers on the helpdesk tasks, to compare prompts with. Needs scikit-learn.

python benchmarks/bag_of_words.py
"""

from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from softprompts.config import TaskConfig
from softprompts.tasks import load_task
from softprompts.tasks.starter import STARTERS


def main() -> None:
    for name in STARTERS:
        task = load_task(TaskConfig(task=name))
        model = make_pipeline(
            TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, min_df=2),
            LogisticRegression(C=10, max_iter=2000),
        )
        model.fit([e.input for e in task.train], [e.target for e in task.train])
        predictions = list(model.predict([e.input for e in task.validation]))
        majority, accuracy = task.majority()["accuracy"], task.score(predictions)["accuracy"]
        print(f"{name:<20} majority {majority:5.1f}   bag of words {accuracy:5.1f}", flush=True)


if __name__ == "__main__":
    main()
