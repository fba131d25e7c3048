"""Datasets on the Hugging Face Hub.

    paths        parse hf://datasets/OWNER/NAME/path
    http         send requests, bounded in time and memory; explain the Hub's errors
    repository   list the files of a repository at a commit
    choose       choose which files of a repository to fetch
    fetch        fetch and check files; resume in the middle of a file
    cache        fetch files into the Hub's own cache, for `open` and `prepare`
    single_file  fetch one file of a tokenizer, without huggingface_hub

All modules but `single_file` send their requests through `huggingface_hub` (the extra `hub`), which
is imported when it is first used.
"""
