"""Datasets on the Hugging Face hub: found, chosen from, fetched and checked.

    address    what a user writes, such as hf://datasets/OWNER/NAME/path
    listing    which files a repository holds, with their sizes and checksums
    choose     which of them were asked for
    fetch      one file, from where an earlier attempt stopped
    download   some files into a folder
    cache      the same into the hub's own cache, for `open` and `prepare`

Needs the extra `hub`; nothing of it is loaded before it is used.
"""
