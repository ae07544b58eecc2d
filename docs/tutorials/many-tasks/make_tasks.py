"""Writes made-up tasks on messages to a bike shop: tasks/NAME.csv, and new.csv without labels.

Eight tasks are about one part of a message each; the ninth, reply, combines two of them.
"""

import csv
import random
from pathlib import Path

TOPIC = {
    "wheel": ("a flat tyre", "a bent wheel", "a broken spoke"),
    "brakes": ("worn brake pads", "a loose brake cable", "squealing brakes"),
    "lights": ("a dead front lamp", "a flickering rear light", "a broken dynamo"),
    "gears": ("a slipping chain", "gears that will not shift", "a bent derailleur"),
}
RIDER = {
    "child": ("my son's {} bike", "my girl's {} bike", "our kid's {} bike"),
    "adult": ("my {} bike", "my {} office bike", "my {} touring bike"),
}
AGE = {"new": ("new", "brand-new"), "old": ("old", "rusty", "ancient")}
URGENT = {
    "yes": ("I need it today.", "It cannot wait.", "I leave tomorrow morning."),
    "no": ("There is no hurry.", "Next month is fine.", "Any day suits me."),
}
MOOD = {
    "good": ("You did great work last time.", "I love your shop.", "Your team is always kind."),
    "bad": ("I am not happy with you.", "Last time was a mess.", "Your service is poor."),
}
PRICE = {
    "yes": ("What will it cost?", "How much is that?", "Please send me a price."),
    "no": ("", "Just go ahead.", "You know the bike already."),
}
PLACE = {
    "shop": ("I will bring it in.", "I can drop it off.", "I come to the shop."),
    "home": ("Please come to my house.", "Can you pick it up here?", "Please fetch it at home."),
}
STYLE = {"formal": ("Dear team, I have", "Good day, I found"), "casual": ("Hey, got", "Yo,")}
PARTS = {
    "topic": TOPIC,
    "rider": RIDER,
    "age": AGE,
    "urgent": URGENT,
    "mood": MOOD,
    "price": PRICE,
    "place": PLACE,
    "style": STYLE,
}


def message(rng: random.Random) -> dict[str, str]:
    """A message, and its label for every task."""
    labels = {task: rng.choice(list(values)) for task, values in PARTS.items()}
    part = {task: rng.choice(PARTS[task][label]) for task, label in labels.items()}
    tail = [part["urgent"], part["mood"], part["price"], part["place"]]
    rng.shuffle(tail)
    first = f"{part['style']} {part['topic']} on {part['rider'].format(part['age'])}."
    labels["reply"] = "yes" if labels["urgent"] == "yes" or labels["price"] == "yes" else "no"
    return {"message": " ".join(filter(None, [first, *tail])), **labels}


def write(path: Path, rows: list[dict[str, str]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


Path("tasks").mkdir(exist_ok=True)
for number, task in enumerate([*PARTS, "reply"]):
    rng = random.Random(number)
    rows = [message(rng) for _ in range(200)]
    write(Path(f"tasks/{task}.csv"), [{"message": r["message"], "label": r[task]} for r in rows])
rng = random.Random(99)
write(Path("new.csv"), [{"id": str(n), "message": message(rng)["message"]} for n in range(1, 31)])
