"""What benchmarks stand on: plans of exact length, open and closed loops over HTTP, records, summaries, charts, files.

tokenizer = load_tokenizer(directory)
plan = [single(PlannedRequest((Prompts(tokenizer).user(500, "a"),), 500, 16))]
records = run_closed(find_endpoint("http://127.0.0.1:8000"), plan, concurrency=4)
print(summarize(records, ttft_target_s=1.0))
"""

from app.bench.load.charts import Chart, Words
from app.bench.load.endpoint import Endpoint, find_endpoint
from app.bench.load.environment import Environment
from app.bench.load.output import read_records, write_records
from app.bench.load.plan import Conversation, PlannedRequest, single
from app.bench.load.progress import Bars, progress_bars
from app.bench.load.prompts import Prompts, load_tokenizer
from app.bench.load.record import RequestRecord
from app.bench.load.result import BenchResult, Goal
from app.bench.load.run import run_closed, run_open
from app.bench.load.summary import Spread, Summary, summarize

__all__ = [
    "Bars",
    "BenchResult",
    "Chart",
    "Conversation",
    "Endpoint",
    "Environment",
    "Goal",
    "PlannedRequest",
    "Prompts",
    "RequestRecord",
    "Spread",
    "Summary",
    "Words",
    "find_endpoint",
    "load_tokenizer",
    "progress_bars",
    "read_records",
    "run_closed",
    "run_open",
    "single",
    "summarize",
    "write_records",
]
