//! `docs/tutorial.md` is run from the first block to the last, in one shell: with its servers, its Redis and its nginx on free ports.

use tollgate_testkit::{Scratch, free_port};

use crate::guide::{blocks, compare, in_silence, script, shell, until_quick};
use crate::proxy::file;

const GUIDE: &str = include_str!("../../../docs/tutorial.md");

/// Every command of the tutorial works, and shows what the page says. It takes its store away once: where the store was away more
/// often, the machine was too busy, and the tutorial is followed again.
#[test]
fn the_tutorial_is_true() {
    let blocks = blocks(GUIDE);
    let is_quick = |output: &String| output.matches("the store does not serve").count() <= 1;
    compare(&blocks, &until_quick(|| followed(&blocks), is_quick), 16);
}

/// The output of the commands, each block's before a mark.
fn followed(blocks: &[(&str, String)]) -> String {
    let folder = Scratch::new();
    let ports = ["6379", "8080", "8090", "8000", "3000"].map(|port| (port, free_port().to_string()));
    let free = |text: &str| ports.iter().fold(text.to_owned(), |text, (port, free)| text.replace(port, free));
    let recipe = std::fs::read_to_string(file("deploy/nginx/tollgate.conf")).unwrap();
    std::fs::create_dir_all(folder.path("checkout/deploy/nginx")).unwrap();
    folder.write("checkout/deploy/nginx/tollgate.conf", &free(&recipe));
    // Without `-e`: `decide` says by its status that the last request was denied.
    let start = "set -u\nONE= TWO= NGINX= API= REDIS=\ntrap 'kill $ONE $TWO $NGINX $API $REDIS 2>/dev/null || true' EXIT";
    let script = script(start, blocks);
    let mut shell = shell(&free(&script));
    let address = free("127.0.0.1:8080");
    shell
        .current_dir(folder.path(""))
        .env("CHECKOUT", folder.path("checkout"))
        .env("TOLLGATE_HTTP", &address)
        .env("TOLLGATE_SERVER", format!("http://{address}"))
        // Where many tests share a few processors, a decision may take longer than it does elsewhere.
        .env("TOLLGATE_STORE_DEADLINE", "50ms");
    in_silence(shell)
}
