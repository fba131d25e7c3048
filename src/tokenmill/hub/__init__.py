"""Datasets on the Hugging Face Hub.

    paths        hf://datasets/OWNER/NAME/path, parsed
    repository   requests: the files of a repository at a commit, and what the Hub's errors mean
    choose       which of those files to fetch
    fetch        fetch files: resumable in the middle of a file, and checked
    cache        the same into the Hub's own cache, for `open` and `prepare`
    single_file  one file of a tokenizer; needs no huggingface_hub

All requests go through `huggingface_hub` (the extra `hub`), which is imported when it is first used.
"""
