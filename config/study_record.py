# Five seeds of config/record.py and their scores, for a record. docs/records.md has the rules.
#
#   python -m eval.study config/study_record.py
base = "finished/study_visible.py"  # the same tasks and fine-tuning
out_dir = "out/study-record"
train = "config/record.py"
seeds = (120, 121, 122, 123, 124)  # take five that no record has

runs = (("record", "", ""),)
random = ()
primary = ()
figures = (("losses", "step", "record", "record"),)
