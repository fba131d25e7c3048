"""Datasets on the Hugging Face Hub.

    paths        hf://datasets/OWNER/NAME/path, parsed
    http         requests, bounded in time and memory, and what the Hub's errors mean
    repository   the files of a repository at a commit
    choose       which of those files to fetch
    fetch        fetch files: resumable in the middle of a file, and checked
    cache        fetch files into the Hub's own cache, for `open` and `prepare`
    single_file  one file of a tokenizer; needs no huggingface_hub

All requests except those of `single_file` go through `huggingface_hub` (the extra `hub`), which is
imported when it is first used.
"""
