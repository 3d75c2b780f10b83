"""The metrics of a controller for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server


class Meters:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.version = Gauge("archipel_version", "Version of the community model", registry=self.registry)
        self.score = Gauge("archipel_score", "Last score of the community model", registry=self.registry)
        self.learners = Gauge("archipel_learners", "Learners present", registry=self.registry)
        self.tasks = Gauge("archipel_tasks_out", "Open tasks", ["kind"], registry=self.registry)
        self.latency = Histogram(
            "archipel_update_seconds",
            "From an update's first byte to its receipt",
            buckets=(0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300),
            registry=self.registry,
        )
        self.turnaround = Histogram(
            "archipel_task_seconds",
            "From a training task's order to its answer",
            buckets=(0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3000, 10000),
            registry=self.registry,
        )
        self.updates = Counter("archipel_updates", "Answers to training tasks", ["verdict"], registry=self.registry)
        self.refusals = Counter("archipel_refusals", "Calls and answers refused", ["why"], registry=self.registry)
        self.capped = Gauge(
            "archipel_capped_learners",
            "Learners that claim more than the largest share allowed",
            ["what"],
            registry=self.registry,
        )
        self.certificates = Gauge(
            "archipel_certificate_expiry_timestamp_seconds",
            "When the certificate of the controller or of a caller expires",
            ["who"],
            registry=self.registry,
        )
        self.bytes = Counter("archipel_bytes", "Bytes of models on the wire", ["way"], registry=self.registry)
        self.restarts = Counter(
            "archipel_restarts", "Times that the controller was killed and restarted", registry=self.registry
        )

    def serve(self, host: str, port: int) -> None:
        """Answer Prometheus over HTTP, in a thread of its own."""
        start_http_server(port, host, registry=self.registry)
