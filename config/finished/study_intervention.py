# The intervention: does 80/10/10 in the first 10 % of the steps do what a CLM phase does? Width 128, 10.2M tokens, as
# part A of config/finished/study_cause.py. docs/results/study_intervention.md has the design, which was committed
# before the runs, and the commands: the first row is not fine-tuned.
base = "study_cause.py"  # the same model, text and tasks
out_dir = "out/study-intervention"

# name, what it begins with, arguments of train.py. The first row stops early: its own rate begins to decay at step 500.
# Both rows have one rate, 2e-3 or 1e-3, as the trial on seed 0 chooses.
runs = (
    ("mlm-80-10-10-start", "", "--max_steps=800 --mask_proportions=0.8,0.1,0.1"),
    ("first10-mlm-10.2M", "mlm-80-10-10-start@500", ""),
)
primary = ()  # the page of the design names the comparisons with models of config/finished/study_cause.py
rates = (5e-4, 1e-3, 2e-3, 4e-3)
figures = ()
