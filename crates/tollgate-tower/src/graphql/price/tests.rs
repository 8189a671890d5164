use super::*;

fn price(text: &str) -> Result<Price, Unpriced> {
    Pricing::default().price(text, None, &Map::new())
}

fn points(text: &str) -> u64 {
    price(text).unwrap().points
}

/// Fields cost their weight, and lists as often as they have entries.
#[test]
fn lists_multiply() {
    assert_eq!(points("{ viewer }"), 1);
    assert_eq!(points("{ viewer { login name __typename } }"), 3);
    assert_eq!(points("{ posts(first: 10) { title } }"), 11);
    // GitHub's own example of nodes: 50 repositories with 10 issues each.
    assert_eq!(
        points("{ repositories(first: 50) { edges { repository: node { issues(first: 10) { title } } } } }"),
        651
    );
    assert_eq!(points("{ posts(first: 2, last: 5) { title } }"), 6);
    assert_eq!(points("mutation { close { id } }"), 12);
    assert_eq!(points("query($n: Int = 7) { posts(first: $n) { id } }"), 8);
}

/// Variables of the request count before their defaults; what is no number is refused.
#[test]
fn variables() {
    let text = "query($n: Int = 7) { posts(first: $n) { id } }";
    let with = |value: Json| {
        let variables = Map::from_iter([("n".to_owned(), value)]);
        Pricing::default().price(text, None, &variables).map(|price| price.points)
    };
    assert_eq!(with(Json::from(100)), Ok(101));
    assert_eq!(with(Json::Null), Ok(2));
    for wrong in [Json::from(-1), Json::from("9"), Json::from(1.5)] {
        assert_eq!(with(wrong).unwrap_err().code, "BAD_USER_INPUT");
    }
    assert_eq!(price("{ posts(first: -3) { id } }").unwrap_err().code, "BAD_USER_INPUT");
    // A default that is no number is none that a server may not read as one, and of two it takes either.
    for wrong in ["$n: ID = \"1000\"", "$n: Float = 1e3", "$n: Int = -1", "$n: Int = 1000, $n: Int = 1"] {
        let text = format!("query({wrong}) {{ posts(first: $n) {{ id }} }}");
        assert_eq!(price(&text).unwrap_err().code, "BAD_USER_INPUT", "{wrong}");
    }
    assert_eq!(points("query($n: Int) { posts(first: $n) { id } }"), 2);
    assert_eq!(points("query($n: Int = null) { posts(first: $n) { id } }"), 2);
    // None may mean all.
    assert_eq!(points("{ posts(first: 0) { id } }"), 2);
}

/// Sizes count wherever they stand inside of an argument: of those beside one another the largest, of those in a list the sum, since each
/// entry may be answered.
#[test]
fn sizes_at_any_depth() {
    for (text, points_wanted) in [
        ("{ posts(page: {first: 100}) { title } }", 101),
        ("{ posts(page: {by: {what: {last: 7}}}) { title } }", 8),
        ("{ posts(page: {first: 3, last: 5}, first: 4) { title } }", 6),
        ("{ posts(pages: [{first: 10}, {first: 20}, {after: \"x\"}]) { title } }", 31),
        ("{ posts(page: {sizes: {limit: [5, 6]}}) { title } }", 12),
        ("{ posts(page: {first: 0}) { title } }", 2),
        ("{ posts(page: {first: null, after: 9}) { title } }", 2),
        ("{ user(name: {first: \"Ann\", last: \"Lee\"}) { id } }", 2),
        ("{ posts(order: {first: DATE, last: true}) { id } }", 2),
        ("{ posts(page: {first: 5}) { comments(page: {first: 4}) { id } } }", 1 + 5 * 5),
        ("query($p: Page = {first: 9}) { posts(page: $p) { id } }", 10),
        ("query($n: Int = 6) { posts(pages: [{first: $n}]) { id } }", 7),
    ] {
        assert_eq!(points(text), points_wanted, "{text}");
    }
    for wrong in [
        "{ posts(page: {first: -1}) { id } }",
        "{ posts(page: {first: 1.5}) { id } }",
        "{ posts(page: {first: \"1000\"}) { id } }",
        "{ posts(page: {first: \" 1e3 \"}) { id } }",
        "{ posts(page: {first: 99999999999999999999}) { id } }",
        "{ posts(first: {n: 5}) { id } }",
        "{ posts(first: [5]) { id } }",
        "query($p: Page = {first: 9}, $p: Page = {first: 1}) { posts(page: $p) { id } }",
    ] {
        assert_eq!(price(wrong).unwrap_err().code, "BAD_USER_INPUT", "{wrong}");
    }
    assert_eq!(price("{ posts(page: {first: 100000}) { id } }").unwrap_err().code, "GRAPHQL_TOO_COMPLEX");
}

/// The story: `"400"` was refused as a size inside of an argument, and `"0o620"`, `"\u00a0400"`, `"\uff14\uff10\uff10"` and `"400px"`, which
/// JavaScript or Python read as 400, cost as much as a name. A text with a digit of any script is refused, written out or in a variable.
#[test]
fn texts_that_a_language_reads_as_numbers_are_refused() {
    let text = "query($p: Page) { posts(page: $p) { id } }";
    let given = |value: &str| {
        let page = serde_json::json!({"first": value});
        Pricing::default().price(text, None, &Map::from_iter([("p".to_owned(), page)]))
    };
    for number in [
        "400",
        "+400",
        "-400",
        "0x190",
        "0o620",
        "0b110010000",
        "\u{a0}400",
        "\u{feff}400",
        "\u{200b}400",
        "\u{ff14}\u{ff10}\u{ff10}",
        "\u{664}\u{660}\u{660}",
        "400px",
        "400n",
        "(400)",
        "b4",
        ".4e3",
        "\u{b2}",
        "Infinity",
        "-Infinity",
        " inf ",
        "+INF",
        "\u{221e}",
    ] {
        assert_eq!(given(number).unwrap_err().code, "BAD_USER_INPUT", "{number:?}");
        let written = format!("{{ posts(page: {{first: \"{number}\"}}) {{ id }} }}");
        assert_eq!(price(&written).unwrap_err().code, "BAD_USER_INPUT", "{written}");
    }
    for escaped in ["\\u00a0400", "\\uFEFF400", "\\uff14\\uff10", "\\u0034", "\\u0049nfinity"] {
        let written = format!("{{ posts(page: {{first: \"{escaped}\"}}) {{ id }} }}");
        assert_eq!(price(&written).unwrap_err().code, "BAD_USER_INPUT", "{written}");
    }
    for name in ["Ann", "Nan", "Infante", "Jean-Luc", "\u{c9}lodie", ""] {
        assert_eq!(given(name).unwrap().points, 2, "{name:?}");
    }
}

/// Variables are looked through as what is written out is, once each, and count before their defaults.
#[test]
fn sizes_in_variables() {
    let text =
        "query($p: Page = {first: 9}, $n: Int) { posts(page: $p) { id } b: posts(page: {last: $n}) { id } }";
    let with = |variables: Json| {
        let Json::Object(variables) = variables else { panic!() };
        Pricing::default().price(text, None, &variables).map(|price| price.points)
    };
    assert_eq!(with(serde_json::json!({})), Ok(10 + 2));
    assert_eq!(with(serde_json::json!({"p": null, "n": 3})), Ok(2 + 4));
    assert_eq!(with(serde_json::json!({"p": {"first": 20}, "n": 3})), Ok(21 + 4));
    assert_eq!(with(serde_json::json!({"p": [{"a": {"first": 20}}, {"last": 2, "limit": 5}]})), Ok(26 + 2));
    assert_eq!(with(serde_json::json!({"p": {"first": "Ann"}})), Ok(2 + 2));
    for wrong in [
        serde_json::json!({"p": {"first": "100"}}),
        serde_json::json!({"p": {"first": -1}}),
        serde_json::json!({"p": {"deep": [{"first": 1.5}]}}),
        serde_json::json!({"n": "3"}),
    ] {
        assert_eq!(with(wrong.clone()).unwrap_err().code, "BAD_USER_INPUT", "{wrong}");
    }
    let refused = with(serde_json::json!({"p": {"a": {"first": 100_000}}})).unwrap_err();
    assert_eq!(refused.code, "GRAPHQL_TOO_COMPLEX");
    // As many fields as may be, each with the same large variable.
    let many = format!("query($p: [Page]) {{ {} }}", "x(pages: $p) { id } ".repeat(450));
    let large: Vec<Json> = (0..20_000).map(|_| serde_json::json!({"first": 0})).collect();
    let variables = Map::from_iter([("p".to_owned(), Json::from(large))]);
    assert_eq!(Pricing::default().price(&many, None, &variables).unwrap().points, 900);
}

/// Names of one's own: weights and lists.
#[test]
fn weights() {
    let pricing = Pricing {
        weights: BTreeMap::from([("search".to_owned(), 50), ("id".to_owned(), 0)]),
        lists: BTreeMap::from([("tags".to_owned(), 20)]),
        ..Pricing::default()
    };
    let points = |text| pricing.price(text, None, &Map::new()).unwrap().points;
    assert_eq!(points("{ search { id } }"), 50);
    assert_eq!(points("{ tags { name id } }"), 21);
    assert_eq!(points("{ tags(first: 3) { name } }"), 4);
}

/// A fragment counts wherever it is spread; one that spreads itself, or that is not there, is refused.
#[test]
fn fragments() {
    let text = "{ a { ...F } b(first: 3) { ...F } ... on Query { c } } fragment F on T { x y }";
    assert_eq!(points(text), 3 + 7 + 1);
    let cycle = "{ ...A } fragment A on T { ...B } fragment B on T { ...A }";
    assert_eq!(price(cycle).unwrap_err().code, "GRAPHQL_VALIDATION_FAILED");
    assert_eq!(price("{ ...A }").unwrap_err().code, "GRAPHQL_VALIDATION_FAILED");
    let twice = "{ ...A } fragment A on T { b { c { d } } } fragment A on T { b }";
    assert_eq!(price(twice).unwrap_err().code, "GRAPHQL_VALIDATION_FAILED");
}

/// A small text of fragments that doubles at each step is known to be too large at once.
#[test]
fn bombs() {
    let mut text = String::from("{ ...F0 }");
    for step in 0..60 {
        text.push_str(&format!(
            " fragment F{step} on T {{ a: x {{ ...F{} }} b: x {{ ...F{} }} }}",
            step + 1,
            step + 1
        ));
    }
    text.push_str(" fragment F60 on T { x }");
    assert_eq!(price(&text).unwrap_err().code, "GRAPHQL_TOO_COMPLEX");
    let deep = format!("{}x{}", "{ a ".repeat(5_000), "}".repeat(5_000));
    assert!(price(&deep).is_err());
    let wide = format!("{{ {} }}", "x ".repeat(20_000));
    assert!(price(&wide).is_err());
    assert_eq!(
        price("{ a(first: 999999999999) { b(first: 999999999999) { c } } }").unwrap_err().code,
        "GRAPHQL_TOO_COMPLEX"
    );
}

/// The parser bounds how deep one definition is, not how deep fragments that spread one another are: a text of 14 KB once took all of
/// the stack, and the process with it. Whatever the caps are, a thread of the usual size prices it or refuses it.
#[test]
fn chains_of_fragments() {
    let chain = |fragments: usize, inline: usize| {
        let (open, close) = ("...{".repeat(inline), "}".repeat(inline));
        let link = |number| format!("fragment F{number} on T{{{open}...F{}{close}}}", number + 1);
        let links: String = (0..fragments).map(link).collect();
        format!("{{...F0}}{links}fragment F{fragments} on T{{x}}")
    };
    let wide = Pricing { caps: Caps { tokens: 100_000, ..Caps::default() }, ..Pricing::default() };
    let beyond = [chain(50, 50), chain(2_000, 0), chain(199, 0), chain(8_000, 0)];
    let thread = std::thread::Builder::new().stack_size(2 << 20).spawn(move || {
        for text in beyond {
            let refused = wide.price(&text, None, &Map::new()).unwrap_err();
            assert!(refused.message.starts_with("nesting:"), "{refused}");
        }
        assert_eq!(wide.price(&chain(198, 0), None, &Map::new()).unwrap().points, 1);
    });
    thread.unwrap().join().unwrap();
}

/// A fragment that was priced where it stands high is as deep where it stands low, in whichever order they come.
#[test]
fn nesting_is_one_in_any_order() {
    let below = format!("fragment Low on T {{ {}x{} }}", "... {".repeat(50), "}".repeat(50));
    let middle = |number: u32| {
        let spread = if number == 3 { "Low".to_owned() } else { format!("M{}", number + 1) };
        format!("fragment M{number} on T {{ {}...{spread}{} }}", "... {".repeat(50), "}".repeat(50))
    };
    let fragments = format!("{below} {} {} {} {}", middle(0), middle(1), middle(2), middle(3));
    for order in ["...Low ...M3 ...M2 ...M1 ...M0", "...M0 ...M1 ...M2 ...M3 ...Low"] {
        let refused = price(&format!("{{ {order} }} {fragments}")).unwrap_err();
        assert!(refused.message.starts_with("nesting:"), "{refused}");
    }
    assert_eq!(points(&format!("{{ ...Low ...M3 ...M2 }} {fragments}")), 3);
}

/// Caps hold, each by its own name.
#[test]
fn caps() {
    let deep = format!("{}x{}", "{ a ".repeat(16), "}".repeat(16));
    assert!(price(&deep).unwrap_err().message.starts_with("depth: the operation has 16"));
    let aliases = format!("{{ {} }}", (0..51).map(|number| format!("a{number}: x ")).collect::<String>());
    assert!(price(&aliases).unwrap_err().message.starts_with("aliases:"));
    let fields = format!("{{ {} }}", "x ".repeat(1_001));
    assert!(price(&fields).unwrap_err().message.starts_with("fields:"));
}

/// Of several operations the named one is priced; without a name none is.
#[test]
fn operations() {
    let text = "query A { a } query B { b { c } }";
    let named = |name| Pricing::default().price(text, name, &Map::new()).map(|price| price.points);
    assert_eq!(named(Some("A")), Ok(1));
    assert_eq!(named(Some("B")), Ok(2));
    assert_eq!(named(None).unwrap_err().code, "OPERATION_RESOLUTION_FAILURE");
    assert_eq!(named(Some("C")).unwrap_err().code, "OPERATION_RESOLUTION_FAILURE");
    assert_eq!(price("fragment F on T { x }").unwrap_err().code, "OPERATION_RESOLUTION_FAILURE");
    assert_eq!(price("type Query { a: Int }").unwrap_err().code, "GRAPHQL_VALIDATION_FAILED");
    assert_eq!(price("{").unwrap_err().code, "GRAPHQL_PARSE_FAILED");
}
