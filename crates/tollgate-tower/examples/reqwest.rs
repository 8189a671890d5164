//! A reqwest client that keeps to the limit of an API: requests that are too fast wait in a queue inside of the process.
//! Its arguments are a URL and the number of requests:
//!
//! ```sh
//! cargo run -p tollgate-tower --example reqwest -- http://127.0.0.1:3000/ 5
//! ```

use http::Request;
use tollgate::Engine;
use tollgate_tower::RateLimitLayer;
use tower::{Layer, ServiceExt, service_fn};

/// Ten requests a second, evenly spaced, and up to fifty that wait.
const POLICY: &str = "limits: [{name: outbound, by: [host], algorithm: leaky-bucket, rate: 10/s, queue: 50}]";

#[tokio::main]
#[allow(clippy::print_stdout, reason = "an example prints to its user")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).ok_or("the first argument must be a URL")?;
    let times: usize = std::env::args().nth(2).map_or(Ok(5), |times| times.parse())?;
    let client = reqwest::Client::new();
    let send = service_fn(move |request: Request<reqwest::Body>| {
        let client = client.clone();
        async move {
            let response = client.execute(request.try_into()?).await?;
            Ok::<_, reqwest::Error>(http::Response::<reqwest::Body>::from(response))
        }
    });
    let limited = RateLimitLayer::new(Engine::builder().policy(POLICY.parse()?).build()).layer(send);
    for number in 1..=times {
        let request = Request::get(&url).body(reqwest::Body::default())?;
        let response = limited.clone().oneshot(request).await?;
        let waited = response.headers().get("tollgate-waited-ms").and_then(|waited| waited.to_str().ok());
        println!("{number}: {}, waited {} ms", response.status().as_u16(), waited.unwrap_or("0"));
    }
    Ok(())
}
