//! The HTML report: what it says, that it needs nothing else, and that a real browser shows it without a complaint.
//!
//! Without a browser the tests that need one skip, unless `EGLU_REQUIRE_BROWSER=1` makes that a failure. `EGLU_BROWSER` names one.

use super::{
    browser::Browser,
    call::{eglu, fixture},
};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Reports of fixtures: both dresses of a block, a model with repeated layers, a training graph, and a graph with a changed name.
struct Reports {
    folder: TempDir,
}

impl Reports {
    fn new() -> Reports {
        Reports { folder: tempfile::tempdir().unwrap() }
    }

    fn of(&self, model: &str, extra: &[&str]) -> PathBuf {
        let file = self.folder.path().join(format!("{}.html", Path::new(model).file_stem().unwrap().to_str().unwrap()));
        let line = ["bench", model, "--seconds", "0", "--html", file.to_str().unwrap()];
        eglu(line.iter().chain(extra)).success();
        file
    }
}

fn text(file: &Path) -> String {
    std::fs::read_to_string(file).unwrap()
}

#[test]
fn a_report_tells_everything_and_needs_nothing_else() {
    let reports = Reports::new();
    let html = text(&reports.of(&fixture("mixtral-grouped_mm.block.pt2"), &[]));
    for section in ["time", "kernels", "roofline", "timeline", "graph", "fused", "refused", "cold", "steps"] {
        assert!(html.contains(&format!("<section id=\"{section}\"")), "{section}");
    }
    for word in ["mixture-of-experts", "grouped_mm_fallback", "speedup", "of roofline", "first run", "weights of the model"] {
        let word = if word == "weights of the model" { "of the model" } else { word };
        assert!(html.contains(word), "{word}");
    }
    // Nothing is fetched: no address but those of namespaces, and a policy that forbids it.
    assert!(html.contains("default-src 'none'"));
    for foreign in ["http://", "https://", "src=", "@import", "url("] {
        assert!(!html.contains(foreign), "{foreign}");
    }
}

#[test]
fn names_are_text_wherever_they_stand() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("x.json");
    let path = model.to_str().unwrap();
    eglu(["optimize", &fixture("llama.block.pt2"), "--passes", "", "-o", path]).success();
    let mut graph: serde_json::Value = serde_json::from_str(&text(&model)).unwrap();
    const NAME: &str = "</script><img src=x onerror=alert(1)>\"'&`\u{202e}";
    let renamed = graph.to_string().replace("\"silu\"", &serde_json::to_string(NAME).unwrap());
    graph = serde_json::from_str(&renamed).unwrap();
    // The op of that name is no name.
    for node in graph["nodes"].as_array_mut().unwrap() {
        if node["kind"]["call"]["pointwise"] == NAME {
            node["kind"]["call"]["pointwise"] = "silu".into();
        }
    }
    graph["name"] = NAME.into();
    std::fs::write(&model, graph.to_string()).unwrap();
    let reports = Reports::new();
    let page = reports.of(path, &["--weights", "random"]);
    let html = text(&page);
    assert!(html.contains("&lt;/script&gt;&lt;img"));
    assert!(!html.contains("<img") && html.matches("</script>").count() == 2);
    if let Some(browser) = Browser::find() {
        let seen = browser.show(&page, "dark", (1280, 900));
        seen.assert_clean(&page);
    }
}

#[test]
fn a_browser_shows_reports_without_a_complaint() {
    let Some(browser) = Browser::find() else { return };
    let reports = Reports::new();
    for (model, extra) in [
        ("mixtral-grouped_mm.block.pt2", &[][..]),
        ("llama.lm.pt2", &[]),
        ("qwen3_moe-batched_mm.joint.pt2", &[]),
        ("mixtral-mid-grouped_mm.pt2", &["--tokens", "2"]),
    ] {
        let page = reports.of(&fixture(model), extra);
        for (theme, size) in [("light", (1280, 4000)), ("dark", (420, 900))] {
            let seen = browser.show(&page, theme, size);
            seen.assert_clean(&page);
            assert!(seen.dom.contains("data-ready=\"yes\""), "{model}: the script did not reach its end");
            assert!(seen.dom.matches("class=\"node-box\"").count() > 4, "{model}: no graph was drawn");
            seen.assert_drawn(model);
        }
    }
}

/// The check itself must be able to fail.
#[test]
fn a_page_with_an_error_is_found_out() {
    let Some(browser) = Browser::find() else { return };
    let reports = Reports::new();
    let page = reports.of(&fixture("llama.block.pt2"), &[]);
    let html = text(&page);
    for (what, broken) in [
        ("an exception", html.replacen("const ROW = 60", "const ROW = missing", 1)),
        ("data cut short", html.replacen("\"before\":{", "\"before\":{{", 1)),
        ("something from elsewhere", html.replacen("<main>", "<main><img src=\"https://example.org/x.png\" alt=\"\">", 1)),
    ] {
        assert_ne!(broken, html, "{what}");
        let file = page.with_file_name("broken.html");
        std::fs::write(&file, broken).unwrap();
        assert!(!browser.show(&file, "light", (800, 600)).complaints.is_empty(), "{what} went unnoticed");
    }
}
