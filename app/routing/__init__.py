"""Where a request goes: pure policies that rank replicas. Nothing here imports Ray, vLLM, LMCache or torch."""
