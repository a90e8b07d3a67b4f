//! Traces for an OpenTelemetry collector: one for each look at a cluster, with what was done there.

use std::time::Duration;

use http::Uri;
use kube::client::ConfigExt as _;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_http::hyper::HyperClient;
use opentelemetry_otlp::{SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::runtime::Tokio;
use opentelemetry_sdk::trace::SdkTracerProvider;
use opentelemetry_sdk::trace::span_processor_with_async_runtime::BatchSpanProcessor;
use tracing::Subscriber;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::registry::LookupSpan;

/// How long a collector may take to answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Where spans go. Spans that wait to be sent are lost unless [`Traces::stop`] is called.
#[derive(Clone, Debug)]
pub struct Traces {
    provider: SdkTracerProvider,
}

/// Why no traces can be sent.
#[derive(Debug, thiserror::Error)]
pub enum TracesError {
    /// The certificates of the system, which a collector behind `https` is checked by.
    #[error("no TLS client can be made")]
    Tls(#[source] Box<kube::Error>),
    /// The address, or what the environment variables `OTEL_EXPORTER_OTLP_…` set.
    #[error("the exporter can't be made")]
    Exporter(#[source] opentelemetry_otlp::ExporterBuildError),
}

impl Traces {
    /// Sends spans to the collector at `endpoint`, by OTLP over HTTP, in Protobuf, to the path
    /// `/v1/traces` below it. A collector that does not answer costs spans, and nothing else.
    /// Needs a running tokio runtime.
    pub fn to(endpoint: &Uri) -> Result<Self, TracesError> {
        let connector = kube::Config::new(endpoint.clone())
            .rustls_https_connector()
            .map_err(|error| TracesError::Tls(Box::new(error)))?;
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(HyperClient::new(connector, TIMEOUT, None))
            .with_endpoint(format!(
                "{}/v1/traces",
                endpoint.to_string().trim_end_matches('/')
            ))
            .with_timeout(TIMEOUT)
            .build()
            .map_err(TracesError::Exporter)?;
        let resource = Resource::builder().with_service_name("boundary-operator");
        let provider = SdkTracerProvider::builder()
            .with_span_processor(BatchSpanProcessor::builder(exporter, Tokio).build())
            .with_resource(resource.build())
            .build();
        Ok(Self { provider })
    }

    /// Takes the spans of the operator from `tracing`, whatever is logged.
    #[must_use]
    pub fn layer<S>(&self) -> impl Layer<S> + use<S>
    where
        S: Subscriber + for<'span> LookupSpan<'span>,
    {
        let ours = Targets::new().with_target("boundary_operator", LevelFilter::INFO);
        tracing_opentelemetry::layer()
            .with_tracer(self.provider.tracer("boundary-operator"))
            .with_location(false)
            .with_threads(false)
            .with_filter(ours)
    }

    /// Sends what waits. Blocks for as long as a collector may take.
    pub fn stop(&self) {
        if let Err(error) = self.provider.shutdown() {
            tracing::warn!(%error, "the last traces could not be sent");
        }
    }
}
