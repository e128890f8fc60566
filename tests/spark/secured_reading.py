"""Reads a topic of a secured broker as a user's program does, in a process with all its output
recorded.

Arguments: a JSON object with `options`, `wrong` (options with a wrong password), `folder`. Prints a
JSON object of what was read; plans and errors go to the standard output as well.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from isotherm.errors import IsothermError
from isotherm.spark.session import session


def main() -> None:
    given = json.loads(sys.argv[1])
    folder = Path(given["folder"])
    spark = session(
        "secured",
        master="local[2]",
        config={
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": (folder / "events").as_uri(),
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
        },
    )
    spark.sparkContext.setLogLevel("INFO")
    frame = spark.read.format("isotherm").options(**given["options"]).load()
    frame.createOrReplaceTempView("secured")
    spark.sql("SELECT partition, offset FROM secured").explain(extended=True)
    spark.sql("EXPLAIN FORMATTED SELECT * FROM secured").show(truncate=False)
    spark.sql("DESCRIBE EXTENDED secured").show(truncate=False)
    print(frame.query._jdf if hasattr(frame, "query") else frame._jdf.queryExecution().toString())
    rows = spark.sql("SELECT count(*), count(DISTINCT value) FROM secured").collect()[0]
    stream = (
        spark.readStream.format("isotherm")
        .options(**given["options"])
        .option("startingOffsets", "earliest")
        .load()
        .writeStream.format("parquet")
        .option("path", str(folder / "sink"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    stream.explain(extended=True)
    stream.awaitTermination()
    print(stream.lastProgress)
    streamed = spark.read.parquet(str(folder / "sink")).count()
    try:
        spark.read.format("isotherm").options(**given["wrong"]).load().count()
    except Exception as error:
        refusal = str(error)
        print(refusal)
    else:
        raise IsothermError("a wrong password was let in")
    spark.stop()
    result = {"records": rows[0], "values": rows[1], "streamed": streamed, "refusal": refusal}
    print("RESULT " + json.dumps(result))


if __name__ == "__main__":
    main()
