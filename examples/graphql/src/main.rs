//! A GraphQL API that is limited by points: one for each field, times the entries of the lists around it.

use std::collections::BTreeMap;
use std::error::Error;
use std::net::SocketAddr;

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::post;
use tokio::net::TcpListener;
use tollgate::Engine;
use tollgate_tower::RateLimitLayer;
use tollgate_tower::graphql::{Caps, CostModel, GraphqlLayer, points};

/// Stands for your GraphQL server.
async fn graphql() -> impl IntoResponse {
    ([(CONTENT_TYPE, "application/json")], r#"{"data":{"posts":[]}}"#)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let costs = GraphqlLayer::new(CostModel {
        // A search costs more than a field.
        weights: BTreeMap::from([("search".to_owned(), 50)]),
        // Refused whatever is left of a limit.
        caps: Caps { depth: 10, points: 500, ..Caps::default() },
        ..CostModel::default()
    });
    let limits = RateLimitLayer::new(Engine::open("policy.yaml")?).cost(points);
    // The last layer is the outermost: costs are known before limits are asked.
    let app = Router::new().route("/graphql", post(graphql)).layer(limits).layer(costs);

    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:3000".to_owned());
    let listener = TcpListener::bind(address).await?;
    println!("listening on {}", listener.local_addr()?);
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
