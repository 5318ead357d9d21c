//! Drawing of plots. The script of the page draws the curves.

use maud::{Markup, PreEscaped, html};
use serde_json::Value;

/// Renders a plot.
pub(crate) fn plot(data: &Value) -> Markup {
    plot_of("plot", data)
}

/// Renders a plot of less height.
pub(crate) fn small_plot(data: &Value) -> Markup {
    plot_of("plot small", data)
}

fn plot_of(classes: &str, data: &Value) -> Markup {
    html! {
        figure class=(classes) {
            script type="application/json" { (in_script(data)) }
            noscript { "The plot needs JavaScript; the table below has all its numbers." }
        }
    }
}

/// Returns JSON as the text of a `script` element. HTML does not unescape this text, so `<`, `>` and `&` are escaped as
/// in JSON, and the text can neither end the element nor begin a comment.
fn in_script(value: &Value) -> PreEscaped<String> {
    let text = value.to_string();
    PreEscaped(text.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_ends_no_element() {
        let value = serde_json::json!({ "name": "</script><!-- & -->" });
        let PreEscaped(text) = in_script(&value);
        assert!(!text.contains(['<', '>', '&']), "{text}");
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
    }
}
