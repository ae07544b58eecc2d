"""The helpdesk tasks with a bag of words: what a prompt on a small frozen model is to be read against. Needs scikit-learn.

python benchmarks/bag_of_words.py
"""

from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from softprompts.tasks import load_task
from softprompts.config.task import TaskConfig
from softprompts.tasks.starter import STARTERS


def main() -> None:
    for name in STARTERS:
        task = load_task(TaskConfig(task=name))
        model = make_pipeline(
            TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, min_df=2),
            LogisticRegression(C=10, max_iter=2000),
        )
        model.fit([e.input for e in task.train], [e.target for e in task.train])
        scores = task.score(list(model.predict([e.input for e in task.validation])))
        print(
            f"{name:<20} majority {task.majority()['accuracy']:5.1f}   bag of words {scores['accuracy']:5.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
