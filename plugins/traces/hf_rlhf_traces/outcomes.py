"""Reasons to reject a row, and changes and counts while reading rows."""

REJECTED = {
    "not_json": "the line is no whole JSON: corrupt, or cut off",
    "not_utf8": "the line is not UTF-8",
    "not_object": "the row is no JSON object",
    "too_large": "the row is larger than --max_row_mb",
    "file_damaged": "the file cannot be read from here on",
    "no_form": "no form fits the row",
    "two_forms": "more than one form fits the row",
    "no_question": "there is no question, or an empty one",
    "no_trace": "there is no trace, or no step that is known",
    "step_not_object": "a step is no object",
    "content_not_text": "a content is a list or an object",
    "malformed": "the row breaks the rules of its form",
    "tag_not_closed": "a tag is opened and never closed: the text was cut off",
    "user_turn_in_the_middle": "a second question is asked in the middle of the trace",
    "result_before_search": "a result has no search that it could answer",
    "two_answers": "there are two different final answers",
    "duplicate": "the same row was read before",
    "answer_wrong": "the source calls the answer wrong, and there is no search",
}
"""Reason -> meaning."""

BY_CHOICE = ("duplicate", "answer_wrong")
"""Reasons that are no fault of a row."""

NOTED = {
    "without_results": "traces without any result: they have a first reply only",
    "without_answer": "traces that end without an answer",
    "searches_without_result": "searches that nothing came back for",
    "results_reordered": "groups of results put into the order of their parallel searches",
    "searches_empty": "searches without a query, kept: what came back follows them",
    "hidden_reasoning": "reasoning that the provider hides; nothing stands for it",
    "reasoning_empty": "reasoning without text, left out",
    "answers_empty": "answers without text, left out",
    "answers_wrong": "answers that the source calls wrong, left out with the reasoning for them",
    "called_wrong": "traces that this field calls wrong, still learned: filter the files",
    "right_answers": "traces whose right answers are read from this field, for `eval`",
    "answers_in_the_middle": "answers after which the agent continued, kept as reasoning",
    "answers_repeated": "final answers given twice in the same words, kept once",
    "reasoning_after_the_answer": "reasoning after the final answer, left out",
    "searches_after_the_answer": "searches after the final answer, without a result, left out",
    "documents_missing": "results whose documents are missing or null, kept without any",
    "documents_null": "documents that are null, left out",
    "documents_empty": "documents without title and text, left out",
    "documents_cut": "documents cut to --max_document_chars",
    "characters_cut": "characters cut from those",
    "document_fields_left_out": "fields of documents that are neither title nor content",
    "numbers_as_text": "numbers, true and false where a text was expected, written out",
    "control_characters": "control characters taken out of texts",
    "half_characters": "halves of surrogate pairs replaced by U+FFFD",
    "not_a_number": "NaN and infinity in other fields, made null",
    "earlier_turns": "turns before the question, kept in `fields` only",
    "later_turns": "turns of the user after the first call that follow no answer: unknown steps",
    "answer_echoes": "tool outputs that repeat a submitted answer, left out",
    "answer_arguments_left_out": "arguments beside a submitted answer, such as an explanation",
    "submissions_unclear": "last calls of a tool for answers, with no clear answer, kept as calls",
    "renamed": "different rows with an id that was read before: they get a suffix",
    "blank_lines": "lines without anything",
}
"""Note -> meaning of its count."""
