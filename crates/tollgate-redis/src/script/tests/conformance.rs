//! The suite that every store must pass, on the script, with memory beside it.

use std::sync::Arc;

use tollgate::conformance;

use super::server::Server;
use super::twin::Twin;

#[tokio::test]
async fn the_script_keeps_every_promise_of_a_store() {
    let server = Arc::new(Server::start().await);
    conformance::all(&|origin| Twin::new(&server, origin)).await;
}
