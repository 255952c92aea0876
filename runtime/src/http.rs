//! The small HTTP server of a binary: health, and what the binary adds to it.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::server::{Limits, Socket, serve_on};
use crate::{Backoff, Health, chain};

/// Serves `/healthz` (no loop stands still), `/readyz` (nothing is missing; the body says what is)
/// and the routes of the binary, until it is cancelled. A port that is taken is tried again.
pub async fn serve(address: SocketAddr, health: Health, routes: Router, cancel: CancellationToken) {
    let live = health.clone();
    let router = routes
        .route("/healthz", get(async move || answer(&live.stuck())))
        .route("/readyz", get(async move || answer(&health.missing())));
    let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));
    while !cancel.is_cancelled() {
        match TcpListener::bind(address).await {
            Ok(listener) => {
                let greet = |socket| std::future::ready(Ok::<Socket, std::io::Error>(socket));
                return serve_on(listener, router, Limits::default(), greet, cancel).await;
            }
            Err(error) => tracing::warn!(%address, error = chain(&error), "failed to listen"),
        }
        tokio::select! {
            () = tokio::time::sleep(backoff.next_wait()) => {}
            () = cancel.cancelled() => {}
        }
    }
}

fn answer(problems: &[String]) -> (StatusCode, String) {
    if problems.is_empty() {
        (StatusCode::OK, "ok\n".to_owned())
    } else {
        let mut body = problems.join("\n");
        body.push('\n');
        (StatusCode::SERVICE_UNAVAILABLE, body)
    }
}
