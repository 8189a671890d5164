//! Tests of choosing and running steps.

use std::fs;

use super::*;

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

fn chosen(arguments: &str) -> String {
    let steps = choose(&words(arguments)).unwrap().unwrap();
    steps.iter().map(|step| step.name).collect::<Vec<_>>().join(" ")
}

#[test]
fn arguments_choose_steps() {
    assert_eq!(chosen(""), "tools fmt clippy test doc loom deny smoke");
    assert_eq!(
        chosen("--long"),
        "tools fmt clippy test doc loom deny smoke fuzz release package drift accuracy flood twins faults bench"
    );
    assert_eq!(chosen("loom bench"), "loom bench");
    assert!(choose(&words("--help")).unwrap().is_none());
}

#[test]
fn an_unknown_step_is_an_error_that_lists_the_steps() {
    let error = choose(&words("fmt clipy")).unwrap_err();
    assert_eq!(
        error,
        "unknown step clipy; there are: tools fmt clippy test doc loom deny smoke, \
         and with --long fuzz release package drift accuracy flood twins faults bench"
    );
    assert!(choose(&words("--longer")).is_err());
    assert!(choose(&words("--long fmt")).is_err());
}

static GOOD: Step = Step {
    name: "good",
    needs: Needs::Toolchain,
    first: None,
    run: |shell| {
        shell.note = "all well".to_owned();
        Ok(())
    },
};
static BAD: Step =
    Step { name: "bad", needs: Needs::Toolchain, first: None, run: |shell| shell.run("sh -c false") };
static PANICS: Step = Step { name: "panics", needs: Needs::Toolchain, first: None, run: |_| panic!("a bug") };
static LATER: Step = Step {
    name: "later",
    needs: Needs::Programs,
    first: None,
    run: |shell| shell.run("test -e installed").map_err(|_| "too early".to_owned()),
};
static INSTALLS: Step = Step {
    name: "installs",
    needs: Needs::Toolchain,
    first: Some(|_| Ok(())),
    run: |shell| {
        shell.run("sleep 0.2")?;
        shell.run("touch installed")
    },
};
static CANNOT_INSTALL: Step = Step {
    name: "cannot",
    needs: Needs::Toolchain,
    first: Some(|_| Ok(())),
    run: |_| Err("no network".to_owned()),
};
static HANGS: Step =
    Step { name: "hangs", needs: Needs::Toolchain, first: None, run: |shell| shell.run("sleep 300") };

/// Runs steps in a directory of their own. Returns what they print, and how many passed and failed.
fn printed(name: &str, steps: &[&'static Step]) -> (String, usize, usize) {
    let root = std::env::temp_dir().join(format!("xtask-steps-{name}-{}", std::process::id()));
    fs::create_dir_all(&root).unwrap();
    let directories = Directories { target: root.clone(), root: root.clone() };
    let mut out = Vec::new();
    let results = run_steps(steps, &directories, &mut out).unwrap();
    let printed = String::from_utf8(out).unwrap().replace(root.to_str().unwrap(), "");
    fs::remove_dir_all(root).unwrap();
    let passed = results.iter().filter(|result| result.is_ok).count();
    (printed, passed, results.len() - passed)
}

/// All steps run whatever fails, and a failed one shows its log.
#[test]
fn all_steps_run_whatever_fails() {
    let expected = "\
[1/2] bad (after 0 s)
      | 2:error: `sh -c false` failed: exit status: 1
      | …
      | $ sh -c false
      | error: `sh -c false` failed: exit status: 1
      all of it: /test-logs/bad.log
      bad: FAILED in 0 s
[2/2] good (after 0 s)
      good: ok in 0 s, all well
";
    assert_eq!(printed("fail", &[&BAD, &GOOD]), (expected.to_owned(), 1, 1));
}

/// A step that needs installed programs waits for them; the others do not.
#[test]
fn installs_run_beside_what_does_not_need_them() {
    let (shown, passed, failed) = printed("beside", &[&INSTALLS, &GOOD, &LATER]);
    assert_eq!((passed, failed), (3, 0), "{shown}");
    let order: Vec<_> = shown.lines().filter_map(|line| line.strip_prefix('[')?.split(' ').nth(1)).collect();
    assert_eq!(order, ["installs", "good", "later"]);
}

/// Without the tools every other step would fail for the same reason; what runs beside them is ended.
#[test]
fn nothing_runs_without_the_tools() {
    let started = now();
    let (shown, passed, failed) = printed("without", &[&CANNOT_INSTALL, &HANGS, &LATER]);
    assert_eq!((passed, failed), (0, 1), "{shown}");
    assert!(shown.contains("error: no network") && !shown.contains("later"), "{shown}");
    assert!(started.elapsed() < Duration::from_secs(60));
}

#[test]
fn a_step_that_panics_has_failed() {
    let (shown, passed, failed) = printed("panics", &[&GOOD, &PANICS]);
    assert_eq!((passed, failed), (1, 1), "{shown}");
    assert!(shown.ends_with("      panics: FAILED in 0 s, it stopped without a result\n"), "{shown}");
}

/// The workflow runs `./test` with the Rust that the manifest promises.
#[test]
fn the_workflow_has_the_promised_rust() {
    let manifest = include_str!("../../../Cargo.toml");
    let workflow = include_str!("../../../.github/workflows/test.yml");
    let version = manifest.lines().find_map(|line| line.strip_prefix("rust-version = ")).unwrap();
    let image = format!("image: rust:{}-bookworm\n", version.trim_matches('"'));
    assert!(workflow.contains(&image), "{image}");
    assert!(workflow.contains("- run: ./test "));
}
