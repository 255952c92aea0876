//! What a server says about itself.

use std::time::Duration;

use anyhow::{Context, Result};
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::rt::TokioExecutor;

/// Adds up the values of some lines of a scrape.
pub fn sum(scrape: &str, of: impl Fn(&str) -> bool) -> u64 {
    let lines = scrape.lines().filter(|line| of(line));
    lines
        .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
        .sum()
}

/// Asks a server of plain HTTP.
pub async fn get(url: &str) -> Result<String> {
    let client: HttpClient<_, Empty<axum::body::Bytes>> =
        HttpClient::builder(TokioExecutor::new()).build_http();
    let answer = tokio::time::timeout(Duration::from_secs(30), client.get(url.parse()?)).await;
    let body = answer.context("no answer")??.into_body().collect().await?;
    Ok(String::from_utf8_lossy(&body.to_bytes()).into_owned())
}
