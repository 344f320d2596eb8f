"""One class for one job: windows of a job's GPUs take the class that its owner gave it, or that most of them show.

To change when a job counts for a window: `streams/running_jobs.py`.
"""

import polars as pl

JOB_COLUMNS: dict[str, pl.DataType] = {
    "gpu_uuid": pl.String(),
    "source": pl.String(),
    "job_id": pl.String(),
    "workload_class": pl.String(),
}


def of_jobs(windows: pl.DataFrame, jobs: pl.DataFrame) -> pl.DataFrame:
    """`windows`, rows of WINDOWS of one window, with the class of the job that each GPU worked for.

    `jobs`: a row per GPU and job of that window, with `JOB_COLUMNS`; workload_class null: its owner does not say. Then
    the class counts that more than half of the job's working GPUs show, if two at least do. A GPU with several jobs and
    an idle one keep what they have, so that nobody is scored for a job that it did not work for.
    """
    if jobs.is_empty() or windows.is_empty():
        return windows
    one = jobs.unique(["gpu_uuid", "source", "job_id"], keep="last", maintain_order=True)
    one = one.filter(pl.len().over("gpu_uuid") == 1).rename({"workload_class": "_given"})
    seen = windows.select("gpu_uuid", "workload_class", "busy_samples").with_row_index("_row")
    seen = seen.join(one, on="gpu_uuid", how="inner", maintain_order="left").filter(pl.col("busy_samples") > 0)
    if seen.is_empty():
        return windows
    job = ("source", "job_id")
    known = pl.col("workload_class").is_not_null()
    alike = pl.when(known).then(pl.len().over(*job, "workload_class")).otherwise(0)
    seen = seen.with_columns(alike.alias("_alike"), known.sum().over(*job).alias("_of"))
    wins = (pl.col("_alike") >= 2) & (pl.col("_alike") * 2 > pl.col("_of"))
    most = pl.when(wins).then("workload_class").drop_nulls().first().over(*job)
    told = seen.select("_row", pl.coalesce("_given", most, "workload_class").alias("_class"))
    joined = windows.with_row_index("_row").join(told, on="_row", how="left", maintain_order="left")
    return joined.with_columns(pl.coalesce("_class", "workload_class").alias("workload_class")).select(windows.columns)
