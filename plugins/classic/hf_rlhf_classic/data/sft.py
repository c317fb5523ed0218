"""Load prompts with the response to learn, in common forms: `sft`."""

from typing import Literal

from hf_rlhf.contracts import Loaded
from hf_rlhf.data import ChatRowArguments, chat_adapter, load_chat_rows


@chat_adapter
def sft(
    arguments: ChatRowArguments,
    *,
    target: Literal["final", "every"] = "final",
) -> Loaded:
    """Load prompts with demonstrated responses from a Hub dataset, a folder or a file.

    Rows are `{system?, prompt, response}`, or have another form of docs/reference/classic-data.md:
    `instruction`, `input`, `output`; `question`, `answer`; `messages` or `conversations` as OpenAI
    and ShareGPT spell them; and preference pairs, from which the chosen answer is learned.

    Args:
        path: a JSONL(.gz), JSON, Parquet or CSV file, a folder, or the id of a Hub dataset; or
            several files and folders, also by patterns like `data/*.jsonl`.
        tokenizer: the policy's; for the format and the lengths of rows.
        rejected_rows: file for rows that cannot be used, one JSON object per line.
        target: `final` learns the last assistant turn; `every` returns `messages`, of which a
            trainer with `assistant_only_loss: true` learns every assistant turn.
        schema: the name of the form, if the rows do not determine it.
        columns: expected name -> name in the data; a dotted name reads a field of an object.
        split: the split to train on, unless it is `train` or the only split.
        revision: branch, tag or commit of a Hub dataset; the commit read is in the report.
        subset: configuration name of a Hub dataset.
        format: `conversational` returns messages, `text` strings; `auto` returns messages if the
            tokenizer has a chat template.
        template: template of a user turn in text, with `{prompt}`.
        response_template: template of an assistant turn in text, with `{response}`.
        system_template: template of a system prompt in text, with `{system}`.
        chat_template_kwargs: passed to the chat template when lengths are measured; use the same in
            the trainer.
        system: the system prompt of rows without a system prompt.
        keep: which other columns to keep for rewards; all of them by default, `[]` for none.
        ignore: columns and keys of turns to leave out although they would change what is learned,
            like `image`, `weight` or `reasoning_content`.
        text: texts of prompts and answers are texts, even if they resemble turns as JSON text or a
            transcript.
        test_rows: number of rows to hold out. By default the source's test split, or a tenth.
        test_share: the same as a share.
        max_train_rows: most training rows, drawn by `seed`.
        max_test_rows: the same for held-out rows.
        seed: for the choice of held-out prompts and of rows.
        drop_duplicates: leaves out rows that repeat an earlier row, `exact`ly or `normalised` (case
            and white space aside). They are counted in any case.
        drop_overlap: leaves out training rows whose prompt is held out. Counted in any case.
        max_prompt_tokens: longer prompts are dropped and counted.
        max_tokens: the same for prompt and response together.
        max_rejected_share: over this share of rows that cannot be used, the run stops.

    Returns:
        Splits `train` and `test` with prompt and completion (or messages) and the other columns;
            messages, or texts where `format` is text; and the report.

    Raises:
        DataError: no schema fits, or two do; too many rows cannot be used; a file cannot be read.
        ModelError: `format: conversational`, and the tokenizer has no chat template.
    """
    return load_chat_rows("messages" if target == "every" else "sft", arguments)
