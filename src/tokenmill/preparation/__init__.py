"""Text to tokens on disk: plan, grind, sift, pack. (`tokenmill.prepare` is the function.)"""
