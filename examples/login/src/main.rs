//! A login with two limits, both on wrong passwords: five a minute from one address, whatever accounts it tries
//! (`policy.yaml`), and three a minute for one account, from whatever addresses (`accounts`).

use std::error::Error;
use std::net::SocketAddr;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use serde::Deserialize;
use tokio::net::TcpListener;
use tollgate::{Engine, Gate, KeyedGate, Verdict};
use tollgate_tower::RateLimitLayer;

#[derive(Deserialize)]
struct Login {
    user: String,
    password: String,
}

async fn login(State(accounts): State<KeyedGate>, body: String) -> Response {
    let Ok(Login { user, password }) = serde_json::from_str(&body) else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    // Counted before the password is checked: many guesses at once are many guesses.
    if let Verdict::Deny { retry_after } = accounts.check(&user) {
        let seconds = retry_after.ceil_millis().div_ceil(1_000).to_string();
        return (StatusCode::TOO_MANY_REQUESTS, [(header::RETRY_AFTER, seconds)]).into_response();
    }
    // Stands for a look into your database.
    if password != "correct horse" {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    accounts.reset(&user);
    "welcome\n".into_response()
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let accounts = Gate::keyed("3/min")?;
    let addresses = RateLimitLayer::new(Engine::open("policy.yaml")?);
    let app = Router::new().route("/login", post(login)).with_state(accounts).layer(addresses);

    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:3000".to_owned());
    let listener = TcpListener::bind(address).await?;
    println!("listening on {}", listener.local_addr()?);
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
