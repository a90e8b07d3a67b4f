//! The HTTP endpoints `/metrics`, `/healthz` and `/readyz`.

use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderName, StatusCode};
use axum::routing::get;
use prometheus_client::encoding::prometheus_text;
use tokio::net::TcpListener;

use super::Telemetry;

/// What Prometheus asks for.
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The endpoints. `/healthz` fails when a loop has given no sign for `stuck_after`; `/readyz` fails
/// until the hub was read, no matter which instance leads.
pub fn router(telemetry: Telemetry, stuck_after: Duration) -> Router {
    let health = move |State(telemetry): State<Telemetry>| async move {
        match telemetry.health.stuck(stuck_after) {
            None => (StatusCode::OK, "ok\n".to_owned()),
            Some(stuck) => {
                let text = format!("the loop {} is stuck\n", stuck.as_str());
                (StatusCode::SERVICE_UNAVAILABLE, text)
            }
        }
    };
    Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(health))
        .route("/readyz", get(ready))
        .with_state(telemetry)
}

/// Serves the endpoints until it is dropped.
///
/// # Errors
/// Connections can't be taken any more.
pub async fn serve(
    listener: TcpListener,
    telemetry: Telemetry,
    stuck_after: Duration,
) -> std::io::Result<()> {
    axum::serve(listener, router(telemetry, stuck_after)).await
}

async fn ready(State(telemetry): State<Telemetry>) -> (StatusCode, &'static str) {
    if telemetry.health.is_ready() {
        (StatusCode::OK, "ok\n")
    } else {
        (
            StatusCode::SERVICE_UNAVAILABLE,
            "the hub was not read yet\n",
        )
    }
}

async fn metrics(
    State(telemetry): State<Telemetry>,
) -> Result<([(HeaderName, &'static str); 1], String), StatusCode> {
    let mut text = String::new();
    prometheus_text::encode(&mut text, telemetry.metrics.registry())
        .map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
    Ok(([(CONTENT_TYPE, TEXT)], text))
}
