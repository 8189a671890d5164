//! A strict server and clients of it: `serve` answers, `NAME ADDRESS CALLERS [REDIS]` calls it until it is stopped. A
//! client says `ready`, and starts when it reads a line.

mod server;

use std::error::Error;
use std::io::Write as _;
use std::num::NonZeroU32;
use std::sync::Arc;

use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware};
use reqwest_retry::RetryTransientMiddleware;
use reqwest_retry::policies::ExponentialBackoff;
use tollgate::store::Store;
use tollgate_outbound::{Call, Outbound, Replenish, ResponseView, Settings};

type Failure = Box<dyn Error + Send + Sync>;

/// The server's rule: a bucket of 50 calls that leaks 200 a second.
pub(crate) const SIZE: u32 = 50;
pub(crate) const PER_SECOND: u32 = 200;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match *arguments.as_slice() {
        ["serve"] => server::serve().await,
        [name, address, callers] => run(name, address, callers.parse()?, None).await,
        [name, address, callers, redis] => run(name, address, callers.parse()?, Some(redis)).await,
        _ => Err("usage: serve | NAME ADDRESS CALLERS [REDIS]".into()),
    }
}

async fn run(name: &str, address: &str, callers: usize, redis: Option<&str>) -> Result<(), Failure> {
    let url = format!("http://{address}/call");
    let client = reqwest::Client::new();
    match name {
        "tollgate" => {
            let text = format!("limits: [{{name: requests, by: [host], rate: {PER_SECOND}/s, burst: {SIZE}}}]");
            let mut settings = Settings::default();
            settings.replenish = Replenish::Steadily;
            if let Some(redis) = redis {
                let outbound = Outbound::connect(redis, text.parse()?, settings).await?;
                return tollgate(outbound, client, url, callers).await;
            }
            let engine = tollgate::Engine::builder().policy(text.parse()?).build();
            tollgate(Outbound::new(engine, settings), client, url, callers).await
        }
        "governor" => {
            let (rate, burst) = (NonZeroU32::new(PER_SECOND), NonZeroU32::new(SIZE));
            let quota = Quota::per_second(rate.ok_or("0")?).allow_burst(burst.ok_or("0")?);
            governed(Arc::new(RateLimiter::direct(quota)), client, url, callers).await
        }
        "reqwest-retry" => {
            let policy = ExponentialBackoff::builder().build_with_max_retries(3);
            let retry = RetryTransientMiddleware::new_with_policy(policy);
            retried(ClientBuilder::new(client).with(retry).build(), url, callers).await
        }
        other => Err(format!("{other} is no client").into()),
    }
}

/// Waits until the runner starts all clients together.
async fn start() -> Result<(), Failure> {
    println!("ready");
    std::io::stdout().flush()?;
    tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new())).await??;
    Ok(())
}

async fn tollgate<S: Store + Send + Sync + 'static>(
    outbound: Outbound<S>,
    client: reqwest::Client,
    url: String,
    callers: usize,
) -> Result<(), Failure> {
    start().await?;
    let caller = |_| {
        let (outbound, client, url) = (outbound.clone(), client.clone(), url.clone());
        tokio::spawn(async move {
            let call = Call::to("server");
            loop {
                let Ok(guard) = outbound.acquire(&call).await else { continue };
                let Ok(response) = client.get(&url).send().await else { continue };
                let (status, received) = (response.status(), outbound.engine().now());
                let view = ResponseView { status, headers: response.headers(), body: None, received };
                let _ = guard.settle(&view, None).await;
            }
        })
    };
    wait((0..callers).map(caller).collect()).await
}

async fn governed(
    limiter: Arc<DefaultDirectRateLimiter>,
    client: reqwest::Client,
    url: String,
    callers: usize,
) -> Result<(), Failure> {
    start().await?;
    let caller = |_| {
        let (limiter, client, url) = (Arc::clone(&limiter), client.clone(), url.clone());
        tokio::spawn(async move {
            loop {
                limiter.until_ready().await;
                let _ = client.get(&url).send().await;
            }
        })
    };
    wait((0..callers).map(caller).collect()).await
}

async fn retried(client: ClientWithMiddleware, url: String, callers: usize) -> Result<(), Failure> {
    start().await?;
    let caller = |_| {
        let (client, url) = (client.clone(), url.clone());
        tokio::spawn(async move {
            loop {
                let _ = client.get(&url).send().await;
            }
        })
    };
    wait((0..callers).map(caller).collect()).await
}

/// The callers run until the runner ends the process.
async fn wait(callers: Vec<tokio::task::JoinHandle<()>>) -> Result<(), Failure> {
    for caller in callers {
        caller.await?;
    }
    Ok(())
}
