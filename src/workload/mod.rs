//! What runs inside the worker process: HEARTBEAT and HANDLER.
