"""Writes two made-up tasks on short film notes: mood.csv and topic.csv, 240 rows each."""

import csv
import random

MOOD = {
    "good": ["a joy from start to end", "I would watch it again", "warm, funny and brave"],
    "bad": ["a waste of two hours", "I left before the end", "flat, loud and far too long"],
}
TOPIC = {
    "sea": ["a sailor and his last ship", "a storm off the coast", "divers in a cold bay"],
    "war": ["soldiers lost behind the front", "a general who lies", "letters from a trench"],
    "school": ["a teacher in a small town", "the last exam of the year", "two rivals in one class"],
}
START = ["A film about", "It tells of", "This one is about"]
FILLER = ["The music is by a newcomer.", "It runs for two hours.", "I saw it on a Sunday.", ""]

rng = random.Random(3)
for name, words in (("mood", MOOD), ("topic", TOPIC)):
    with open(f"{name}.csv", "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["note", name])
        for _ in range(240):
            mood, topic = rng.choice(list(MOOD)), rng.choice(list(TOPIC))
            first = f"{rng.choice(START)} {rng.choice(TOPIC[topic])}."
            second = f"{rng.choice(MOOD[mood])}."
            parts = [first, second[0].upper() + second[1:], rng.choice(FILLER)]
            label = mood if words is MOOD else topic
            if rng.random() < 0.1:  # annotators disagree
                label = rng.choice(list(words))
            writer.writerow([" ".join(filter(None, parts)), label])
