A follower checks runs of equal records at once, also with single records between them: pushes of numbered appends cost half as much.
