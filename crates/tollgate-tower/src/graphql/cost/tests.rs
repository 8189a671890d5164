use super::*;

fn cost(text: &str) -> Result<OperationCost, GraphqlProblem> {
    CostModel::default().cost(text, None, &Map::new())
}

fn points(text: &str) -> u64 {
    cost(text).unwrap().points
}

/// A field costs its weight, and the fields of a list cost their weight for each entry.
#[test]
fn lists_multiply_the_cost_of_their_fields() {
    assert_eq!(points("{ viewer }"), 1);
    assert_eq!(points("{ viewer { login name __typename } }"), 3);
    assert_eq!(points("{ posts(first: 10) { title } }"), 11);
    // The example in GitHub's documentation: 50 repositories with 10 issues each.
    assert_eq!(
        points("{ repositories(first: 50) { edges { repository: node { issues(first: 10) { title } } } } }"),
        651
    );
    assert_eq!(points("{ posts(first: 2, last: 5) { title } }"), 6);
    assert_eq!(points("mutation { close { id } }"), 12);
    assert_eq!(points("query($n: Int = 7) { posts(first: $n) { id } }"), 8);
}

/// The value of a variable takes precedence over its default. A size that is not a number is refused.
#[test]
fn sizes_are_read_from_variables_and_their_defaults() {
    let text = "query($n: Int = 7) { posts(first: $n) { id } }";
    let with = |value: Json| {
        let variables = Map::from_iter([("n".to_owned(), value)]);
        CostModel::default().cost(text, None, &variables).map(|cost| cost.points)
    };
    assert_eq!(with(Json::from(100)), Ok(101));
    assert_eq!(with(Json::Null), Ok(2));
    for wrong in [Json::from(-1), Json::from("9"), Json::from(1.5)] {
        assert_eq!(with(wrong).unwrap_err().code, "BAD_USER_INPUT");
    }
    assert_eq!(cost("{ posts(first: -3) { id } }").unwrap_err().code, "BAD_USER_INPUT");
    // A server may convert a default that is not a number, and may take either of two defaults.
    for wrong in ["$n: ID = \"1000\"", "$n: Float = 1e3", "$n: Int = -1", "$n: Int = 1000, $n: Int = 1"] {
        let text = format!("query({wrong}) {{ posts(first: $n) {{ id }} }}");
        assert_eq!(cost(&text).unwrap_err().code, "BAD_USER_INPUT", "{wrong}");
    }
    assert_eq!(points("query($n: Int) { posts(first: $n) { id } }"), 2);
    assert_eq!(points("query($n: Int = null) { posts(first: $n) { id } }"), 2);
    // A size of 0 may mean unlimited.
    assert_eq!(points("{ posts(first: 0) { id } }"), 2);
}

/// Sizes count at any depth of an argument. Of several in one object the largest counts. In a list their sum counts, because
/// a server may answer each entry.
#[test]
fn sizes_count_at_any_depth_of_an_argument() {
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
        assert_eq!(cost(wrong).unwrap_err().code, "BAD_USER_INPUT", "{wrong}");
    }
    assert_eq!(cost("{ posts(page: {first: 100000}) { id } }").unwrap_err().code, "GRAPHQL_TOO_COMPLEX");
}

/// The story: `"400"` was refused as a size inside of an argument, but `"0o620"`, `"\u00a0400"`, `"\uff14\uff10\uff10"` and
/// `"400px"`, which JavaScript or Python parse as 400, were not. Now a text with a digit of any script is refused, as a
/// literal or in a variable.
#[test]
fn texts_that_a_language_reads_as_numbers_are_refused() {
    let text = "query($p: Page) { posts(page: $p) { id } }";
    let given = |value: &str| {
        let page = serde_json::json!({"first": value});
        CostModel::default().cost(text, None, &Map::from_iter([("p".to_owned(), page)]))
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
        assert_eq!(cost(&written).unwrap_err().code, "BAD_USER_INPUT", "{written}");
    }
    for escaped in ["\\u00a0400", "\\uFEFF400", "\\uff14\\uff10", "\\u0034", "\\u0049nfinity"] {
        let written = format!("{{ posts(page: {{first: \"{escaped}\"}}) {{ id }} }}");
        assert_eq!(cost(&written).unwrap_err().code, "BAD_USER_INPUT", "{written}");
    }
    for name in ["Ann", "Nan", "Infante", "Jean-Luc", "\u{c9}lodie", ""] {
        assert_eq!(given(name).unwrap().points, 2, "{name:?}");
    }
}

/// Variables are searched like literals, once each, and take precedence over their defaults.
#[test]
fn sizes_count_inside_of_variables() {
    let text =
        "query($p: Page = {first: 9}, $n: Int) { posts(page: $p) { id } b: posts(page: {last: $n}) { id } }";
    let with = |variables: Json| {
        let Json::Object(variables) = variables else { panic!() };
        CostModel::default().cost(text, None, &variables).map(|cost| cost.points)
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
    // The most fields, each with the same large variable.
    let many = format!("query($p: [Page]) {{ {} }}", "x(pages: $p) { id } ".repeat(450));
    let large: Vec<Json> = (0..20_000).map(|_| serde_json::json!({"first": 0})).collect();
    let variables = Map::from_iter([("p".to_owned(), Json::from(large))]);
    assert_eq!(CostModel::default().cost(&many, None, &variables).unwrap().points, 900);
}

#[test]
fn configured_weights_and_lists_count() {
    let model = CostModel {
        weights: BTreeMap::from([("search".to_owned(), 50), ("id".to_owned(), 0)]),
        lists: BTreeMap::from([("tags".to_owned(), 20)]),
        ..CostModel::default()
    };
    let points = |text| model.cost(text, None, &Map::new()).unwrap().points;
    assert_eq!(points("{ search { id } }"), 50);
    assert_eq!(points("{ tags { name id } }"), 21);
    assert_eq!(points("{ tags(first: 3) { name } }"), 4);
}

/// A fragment counts at every spread. One that spreads itself or is not defined is refused.
#[test]
fn fragments_count_where_they_are_spread() {
    let text = "{ a { ...F } b(first: 3) { ...F } ... on Query { c } } fragment F on T { x y }";
    assert_eq!(points(text), 3 + 7 + 1);
    let cycle = "{ ...A } fragment A on T { ...B } fragment B on T { ...A }";
    assert_eq!(cost(cycle).unwrap_err().code, "GRAPHQL_VALIDATION_FAILED");
    assert_eq!(cost("{ ...A }").unwrap_err().code, "GRAPHQL_VALIDATION_FAILED");
    let twice = "{ ...A } fragment A on T { b { c { d } } } fragment A on T { b }";
    assert_eq!(cost(twice).unwrap_err().code, "GRAPHQL_VALIDATION_FAILED");
}

/// A small text whose fragments double at each step is refused quickly.
#[test]
fn fragment_bombs_are_refused() {
    let mut text = String::from("{ ...F0 }");
    for step in 0..60 {
        text.push_str(&format!(
            " fragment F{step} on T {{ a: x {{ ...F{} }} b: x {{ ...F{} }} }}",
            step + 1,
            step + 1
        ));
    }
    text.push_str(" fragment F60 on T { x }");
    assert_eq!(cost(&text).unwrap_err().code, "GRAPHQL_TOO_COMPLEX");
    let deep = format!("{}x{}", "{ a ".repeat(5_000), "}".repeat(5_000));
    assert!(cost(&deep).is_err());
    let wide = format!("{{ {} }}", "x ".repeat(20_000));
    assert!(cost(&wide).is_err());
    assert_eq!(
        cost("{ a(first: 999999999999) { b(first: 999999999999) { c } } }").unwrap_err().code,
        "GRAPHQL_TOO_COMPLEX"
    );
}

/// The story: the parser bounds the nesting of one definition, but not of fragments that spread one another. A text of 14 KB
/// overflowed the stack. Now a thread with the default stack handles it with any caps.
#[test]
fn chains_of_fragments_do_not_overflow_the_stack() {
    let chain = |fragments: usize, inline: usize| {
        let (open, close) = ("...{".repeat(inline), "}".repeat(inline));
        let link = |number| format!("fragment F{number} on T{{{open}...F{}{close}}}", number + 1);
        let links: String = (0..fragments).map(link).collect();
        format!("{{...F0}}{links}fragment F{fragments} on T{{x}}")
    };
    let wide = CostModel { caps: Caps { tokens: 100_000, ..Caps::default() }, ..CostModel::default() };
    let beyond = [chain(50, 50), chain(2_000, 0), chain(199, 0), chain(8_000, 0)];
    let thread = std::thread::Builder::new().stack_size(2 << 20).spawn(move || {
        for text in beyond {
            let refused = wide.cost(&text, None, &Map::new()).unwrap_err();
            assert!(refused.message.starts_with("nesting:"), "{refused}");
        }
        assert_eq!(wide.cost(&chain(198, 0), None, &Map::new()).unwrap().points, 1);
    });
    thread.unwrap().join().unwrap();
}

/// The nesting of a fragment counts at every spread, in any order of the spreads.
#[test]
fn nesting_does_not_depend_on_the_order_of_spreads() {
    let below = format!("fragment Low on T {{ {}x{} }}", "... {".repeat(50), "}".repeat(50));
    let middle = |number: u32| {
        let spread = if number == 3 { "Low".to_owned() } else { format!("M{}", number + 1) };
        format!("fragment M{number} on T {{ {}...{spread}{} }}", "... {".repeat(50), "}".repeat(50))
    };
    let fragments = format!("{below} {} {} {} {}", middle(0), middle(1), middle(2), middle(3));
    for order in ["...Low ...M3 ...M2 ...M1 ...M0", "...M0 ...M1 ...M2 ...M3 ...Low"] {
        let refused = cost(&format!("{{ {order} }} {fragments}")).unwrap_err();
        assert!(refused.message.starts_with("nesting:"), "{refused}");
    }
    assert_eq!(points(&format!("{{ ...Low ...M3 ...M2 }} {fragments}")), 3);
}

/// The error names the cap that was exceeded.
#[test]
fn caps_are_enforced() {
    let deep = format!("{}x{}", "{ a ".repeat(16), "}".repeat(16));
    assert!(cost(&deep).unwrap_err().message.starts_with("depth: the operation has 16"));
    let aliases = format!("{{ {} }}", (0..51).map(|number| format!("a{number}: x ")).collect::<String>());
    assert!(cost(&aliases).unwrap_err().message.starts_with("aliases:"));
    let fields = format!("{{ {} }}", "x ".repeat(1_001));
    assert!(cost(&fields).unwrap_err().message.starts_with("fields:"));
}

/// Of several operations, the named one is chosen. Without a name the request is refused.
#[test]
fn the_operation_is_chosen_by_its_name() {
    let text = "query A { a } query B { b { c } }";
    let named = |name| CostModel::default().cost(text, name, &Map::new()).map(|cost| cost.points);
    assert_eq!(named(Some("A")), Ok(1));
    assert_eq!(named(Some("B")), Ok(2));
    assert_eq!(named(None).unwrap_err().code, "OPERATION_RESOLUTION_FAILURE");
    assert_eq!(named(Some("C")).unwrap_err().code, "OPERATION_RESOLUTION_FAILURE");
    assert_eq!(cost("fragment F on T { x }").unwrap_err().code, "OPERATION_RESOLUTION_FAILURE");
    assert_eq!(cost("type Query { a: Int }").unwrap_err().code, "GRAPHQL_VALIDATION_FAILED");
    assert_eq!(cost("{").unwrap_err().code, "GRAPHQL_PARSE_FAILED");
}
