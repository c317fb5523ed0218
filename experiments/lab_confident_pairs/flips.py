"""Print how many swapped labels each condition was trained on: `python flips.py STUDY_FOLDER`."""

import sys
from pathlib import Path

from hf_rlhf_lab.pairs.dataset import confident_pairs

CONDITIONS = {
    "all": {"choose": "all"},
    "random_half": {"choose": "random", "rank": "signed"},
    "absolute_half": {"rank": "absolute"},
    "absolute_quarter": {"rank": "absolute", "keep": 0.25},
    "signed_half": {"rank": "signed"},
    "signed_half_twice": {"rank": "signed", "cycle": 2},
}

folders = sorted(Path(sys.argv[1], "prepared", "scored").glob("seed-*/pairs"))
print("| condition | " + " | ".join(folder.parent.name for folder in folders) + " |")
print("|---|" + "--:|" * len(folders))
for name, arguments in CONDITIONS.items():
    counts = []
    for folder in folders:
        rows = confident_pairs(str(folder), **{"cycle": 1, **arguments}).dataset["train"]
        wrong = sum(rows["flipped"])
        counts.append(f"{wrong} of {len(rows):,} ({wrong / len(rows):.1%})")
    print(f"| {name} | " + " | ".join(counts) + " |")
