# Five seeds of config/record.py and their scores, for a record. docs/records.md has the rules.
#
#   python -m eval.study config/study_record.py
#
# Row 0, pure MLM with the same optimizer, was made by
#
#   python -m eval.study config/study_record.py --out_dir=out/study-record-0 --seeds=200,201,202,203,204 \
#     --runs='(("record","","--max_steps=5000 --switch_step=0 --lr=1e-3"),)'
base = "finished/study_visible.py"  # the same tasks
out_dir = "out/study-record"
train = "config/record.py"
seeds = (205, 206, 207, 208, 209)  # for a record of your own, take five that no record has used

runs = (("record", "", ""),)
random = ()
primary = ()
figures = ()
finetune = "--eval_interval=1000"
rates = (1e-3, 2e-3, 4e-3)
finetune_seeds = (1, 2)
