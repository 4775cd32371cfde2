//! What compiles, and what is told of what does not.

use leasehold_actors::ports::recipe::JsonText;

use super::*;
use crate::recipe::{
    limits::{MAX_NESTING, MAX_NODES, MAX_RECIPE_BYTES},
    template::{Reference, Scope},
};

fn bundle(files: &[(&str, &str)]) -> Bundle {
    let files = files.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
    Bundle::new("main.yaml", files.collect())
}

fn compiled(text: &str) -> Recipe {
    compile(&bundle(&[("main.yaml", text)])).unwrap_or_else(|mistakes| panic!("{mistakes}\n{text}"))
}

/// Every mistake, one a line.
fn mistakes(files: &[(&str, &str)]) -> String {
    let found = compile(&bundle(files)).expect_err(files[0].1);
    found.mistakes.iter().map(|mistake| format!("{mistake}\n")).collect()
}

/// Every output is its node's number.
struct Numbers;

impl Scope for Numbers {
    fn read(&self, reference: Reference) -> Option<JsonText> {
        match reference {
            Reference::Outputs(number) => Some(number.0.to_string().into()),
            Reference::Inputs => Some(r#"{"url":"u","n":1}"#.into()),
            Reference::Vars => Some(r#"{"limit":10}"#.into()),
            Reference::TransitionPayload => Some("\"payload\"".into()),
            Reference::Error => Some(r#"{"code":"oom"}"#.into()),
            _ => None,
        }
    }
}

/// The id and number of every node in the order of the walk.
fn numbers(node: &Node, found: &mut Vec<(String, usize)>) {
    found.push((node.id.clone(), node.number.0));
    match &node.body {
        Body::Op { .. } => {}
        Body::Sequence(nodes) | Body::Parallel(nodes) => nodes.iter().for_each(|node| numbers(node, found)),
        Body::States(machine) => machine.states.iter().for_each(|state| numbers(&state.node, found)),
        Body::Include { recipe, .. } => numbers(&recipe.root, found),
    }
    if let Some(catch) = &node.catch {
        numbers(catch, found);
    }
}

const FULL: &str = r#"
id: process
version: 1
job_type: media
inputs: { url: { type: string }, n: { type: integer, default: 1E+2 } }
vars: { limit: 10, exact: 9223372036854775808 }
execution:
  resources: { cpu: "1", memory: 2Gi }
  platform: linux/amd64
sequence:
  - id: probe
    op: http
    inputs: { url: "${{ inputs.url }}", headers: { Authorization: "${{ secrets.TOKEN }}" } }
    timeout: 30s
    retry: { max_attempts: 3, on: [TIMEOUT, http_503] }
    catch: { op: note, inputs: { what: "${{ error.code }}" } }
  - id: both
    parallel:
      - id: left
        sequence:
          - { id: deep, op: a }
          - { id: deeper, op: b, inputs: { from: "${{ sequence.deep.outputs }}" } }
      - { id: right, op: c }
  - id: heavy
    when: ${{ parallel.right.outputs > 1 }}
    execution_needs:
      resources: { memory: "${{ sequence.probe.outputs }}", ephemeral-storage: "${{ vars.limit }}Gi", cpu: 2 }
    op: resize
    inputs: { first: "${{ sequence.probe.outputs }}", deep: "${{ parallel.left.outputs }}" }
  - id: loop
    state:
      initial: poll
      states:
        - id: poll
          op: ask
          inputs: { again: "${{ transition.payload }}", last: "${{ states.done.outputs }}" }
          transitions:
            - { to: done, when: "${{ states.poll.outputs == 1 }}" }
            - { to: poll, payload: { n: "${{ states.poll.outputs }}" } }
        - { id: done, op: finish }
"#;

#[test]
fn a_full_recipe_compiles_with_its_references_resolved() {
    let recipe = compiled(FULL);
    assert_eq!((recipe.id.as_str(), recipe.job_type.as_str(), recipe.language), ("process", "media", 1));
    assert_eq!(recipe.vars["exact"].as_ref(), "9223372036854775808");
    assert_eq!(recipe.inputs["n"].default.as_deref(), Some("1E+2"));
    let mut found = Vec::new();
    numbers(&recipe.root, &mut found);
    let expected =
        ["", "probe", "catch", "both", "left", "deep", "deeper", "right", "heavy", "loop", "poll", "done"];
    let expected: Vec<(String, usize)> =
        expected.into_iter().zip(0..).map(|(id, n)| (id.to_owned(), n)).collect();
    assert_eq!(found, expected);
    assert_eq!(recipe.nodes, expected.len());
    let Body::Sequence(nodes) = &recipe.root.body else { panic!("a sequence") };
    let inputs = |node: &Node| match &node.body {
        Body::Op { inputs, .. } => inputs.render(&Numbers).expect("rendered"),
        _ => panic!("an op"),
    };
    let probe = inputs(&nodes[0]);
    assert_eq!(probe.text, r#"{"url":"u","headers":{"Authorization":"${{ secrets.TOKEN }}"}}"#);
    assert_eq!(
        (probe.secrets[0].pointer.as_str(), probe.secrets[0].name.as_str()),
        ("/headers/Authorization", "TOKEN")
    );
    let retry = nodes[0].retry.as_ref().expect("retry");
    assert_eq!((retry.max_attempts, retry.backoff, retry.on.len()), (3, Duration::from_secs(1), 2));
    assert_eq!(nodes[0].timeout, Some(Duration::from_secs(30)));
    assert_eq!(inputs(nodes[0].catch.as_ref().expect("catch")).text, r#"{"what":"oom"}"#);
    let heavy = &nodes[2];
    assert_eq!(inputs(heavy).text, r#"{"first":1,"deep":4}"#);
    assert!(heavy.when.as_ref().expect("when").holds(&Numbers).expect("a condition"), "right is number 7");
    let text = |need: &Option<Template>| need.as_ref().expect("a need").text(&Numbers).expect("text");
    assert_eq!(text(&heavy.needs.memory), "1");
    assert_eq!(text(&heavy.needs.ephemeral_storage), "10Gi");
    assert_eq!(text(&heavy.needs.cpu), "2");
    let Body::States(machine) = &nodes[3].body else { panic!("a machine") };
    assert_eq!(inputs(&machine.states[0].node).text, r#"{"again":"payload","last":11}"#);
    let ways = &machine.states[0].transitions;
    assert_eq!((ways[0].to, ways[1].to), (1, 0));
    assert_eq!(
        ways[1].payload.as_ref().expect("payload").render(&Numbers).expect("rendered").text,
        r#"{"n":10}"#
    );
}

#[test]
fn an_included_recipe_has_inputs_and_names_of_its_own() {
    let main = "id: main\nsequence:\n  - {id: one, op: a}\n  - id: twice\n    include: lib/part.yaml\n    \
                inputs: {n: \"${{ sequence.one.outputs }}\"}\n  - {id: again, include: lib/part.yaml, inputs: {n: 2}}\n";
    let part = "id: part\ninputs: {n: {type: integer}}\nexecution: {resources: {cpu: 500m}}\n\
                sequence:\n  - {id: one, op: b, inputs: {n: \"${{ inputs.n }}\"}}\n  - {id: two, include: ../leaf.yaml}\n";
    let leaf = "id: leaf\nop: c\nwith: {x: 1}\n";
    let files = [("main.yaml", main), ("lib/part.yaml", part), ("leaf.yaml", leaf)];
    let recipe = compile(&bundle(&files)).unwrap_or_else(|e| panic!("{e}"));
    let mut found = Vec::new();
    numbers(&recipe.root, &mut found);
    let ids: Vec<&str> = found.iter().map(|(id, _)| id.as_str()).collect();
    assert_eq!(ids, ["", "one", "twice", "", "one", "two", "", "again", "", "one", "two", ""]);
    assert!(found.iter().enumerate().all(|(n, (_, number))| n == *number), "{found:?}");
    for (bad, says) in [
        (
            "op: x\nwith: {n: \"${{ sequence.one.outputs }}\"}",
            "lib/part.yaml:2:11: `${{ sequence.one.outputs }}`: there is no node `one`",
        ),
        ("op: x\ninputs: {m: {type: string}}", "main.yaml:6:14: the included recipe declares no input `n`"),
        ("op: x\ninputs: {n: {type: boolean}}", "main.yaml:7:53: `n` must be a boolean, not a number"),
        (
            "op: x\ninputs: {n: {type: integer}, m: {type: any}}",
            "main.yaml:6:13: the included recipe requires the input `m`",
        ),
        (
            "op: x\njob_type: y\ninputs: {n: {type: any}}",
            "lib/part.yaml:2:11: `job_type` belongs to the root",
        ),
    ] {
        let text = format!("{bad}\nid: part\n");
        // The place of the id does not matter; that of the mistake does.
        let found = mistakes(&[("main.yaml", main), ("lib/part.yaml", &text)]);
        assert!(found.contains(says), "{bad}\n{found}");
    }
}

#[test]
fn a_mistake_is_told_with_file_line_and_column() {
    let mut wrong = Vec::new();
    for (text, says) in [
        (
            "id: a\n",
            "1:1: a recipe has exactly one of `op`, `sequence`, `state`, `parallel`, `include`, not none",
        ),
        ("id: a\nop: b\nparallel: [{id: c, op: d}]\n", "not `op`, `parallel`"),
        ("op: b\n", "1:1: `id` is missing from this recipe"),
        ("id: a b\nop: c\n", "1:5: `id` must be 1 to 64 letters"),
        ("id: a\nop: b\nversion: 2\n", "3:10: `version` 2 is not known here"),
        (
            "id: a\nsequense: [{id: b, op: c}]\nop: x\n",
            "2:1: unknown key `sequense` in a recipe; is `sequence` meant?",
        ),
        (
            "id: a\nsequence:\n  - id: b\n    op: c\n    timeout: 10\n",
            "5:14: `timeout` must be a duration, not a number",
        ),
        ("id: a\nop: b\ntimeout: soon\n", "3:10: `timeout` \"soon\" is not a duration"),
        ("id: a\nsequence:\n  - {id: b, op: c}\n  - {id: b, op: d}\n", "4:10: the id `b` comes twice"),
        ("id: a\nsequence: []\n", "2:11: `sequence` must hold at least one node"),
        ("id: a\nop: b\nexecution: {resources: {memory: 500K}}\n", "3:33: memory"),
        ("id: a\nop: b\nexecution: {resources: {cpu: 0}}\n", "3:30: cpu"),
        ("id: a\nop: b\nexecution: {platform: linux}\n", "3:23: platform"),
        ("id: a\nop: b\nexecution: {image: UPPER/x}\n", "3:20: image"),
        ("id: a\nop: b\nwhen: yes\n", "3:7: `when` must be true, false or one template"),
        ("id: a\nop: b\nwhen: \"x${{ true }}\"\n", "3:7: a condition is one template"),
        (
            "id: a\nop: b\nwith: {x: \"${{ inputs.y }}\"}\n",
            "3:11: `${{ inputs.y }}`: there is no input `y`; declared are: none",
        ),
        ("id: a\nop: b\nwith: {\"${{ job.id }}\": 1}\n", "3:8: a key cannot be a template"),
        ("id: a\nop: b\nvars: {x: \"${{ job.id }}\"}\n", "3:11: a constant cannot hold a template"),
        ("id: a\nop: b\nwith: {x: \"${{ 1 + }}\"}\n", "3:11: `${{ 1 + }}`: "),
        ("id: a\nop: b\nwith: {x: \"${{ now() }}\"}\n", "there is no function `now` with 0 arguments"),
        ("id: a\nop: b\nwith: {x: \"${{ env.HOME }}\"}\n", "unknown name `env`"),
        ("id: a\nop: b\nwith: {x: \"a ${{ secrets.X }}\"}\n", "a secret stands alone"),
        ("id: a\nop: b\nwhen: ${{ secrets.X }}\n", "a secret stands alone"),
        // Nobody would put the value in: the name would go to the child, or be waited for.
        (
            "id: a\nop: child_job\nwith: {container: {image: i, env: {T: \"${{ secrets.X }}\"}}}\n",
            "main.yaml:3:39: secrets can be used in the inputs of an op only",
        ),
        (
            "id: a\nop: wait_for_signal\nwith: {name: \"${{ secrets.X }}\"}\n",
            "only of one that runs somewhere",
        ),
        ("id: a\nop: sleep\nwith: {for: \"${{ secrets.X }}\"}\n", "only of one that runs somewhere"),
        ("id: a\nop: b\nwith: {x: \"${{ error.code }}\"}\n", "`error` can be read inside `catch` only"),
        ("id: a\nop: b\nwith: {x: \"${{ transition.payload }}\"}\n", "inside a state only"),
        (
            "id: a\nsequence:\n  - {id: b, op: c, inputs: {x: \"${{ sequence.c.outputs }}\"}}\n  - {id: c, op: c}\n",
            "3:32: `${{ sequence.c.outputs }}`: `c` comes later",
        ),
        (
            "id: a\nsequence:\n  - {id: b, op: c, inputs: {x: \"${{ sequence.b.outputs }}\"}}\n",
            "`b` is the node that this stands in",
        ),
        (
            "id: a\nparallel:\n  - {id: b, op: c}\n  - {id: c, op: c, inputs: {x: \"${{ parallel.b.outputs }}\"}}\n",
            "the branch `b` runs at the same time",
        ),
        (
            "id: a\nsequence:\n  - {id: my-id, op: c}\n  - {id: c, op: c, inputs: {x: \"${{ sequence.my-id.outputs }}\"}}\n",
            "write sequence.ID.outputs, or sequence[\"ID\"].outputs",
        ),
        (
            "id: a\nsequence: [{id: b, sequence: [{id: c, op: d}], inputs: {}}]\n",
            "`inputs` belongs to `op` and `include`",
        ),
        (
            "id: a\nop: b\nretry: {max_attempts: 0}\n",
            "3:23: `max_attempts` must be a whole number from 1 to 1000",
        ),
        (
            "id: a\nop: b\nretry: {max_attempts: 2, backoff: 2m, backoff_cap: 1m}\n",
            "3:52: `backoff_cap` must not be shorter",
        ),
        ("id: a\nop: b\ninputs: {x: {type: text}}\n", "3:20: `type` must be one of `string`"),
        (
            "id: a\nop: b\ninputs: {x: {type: string, default: 1}}\n",
            "3:37: `default` must be a string, not a number",
        ),
        ("id: a\nop: b\ninputs: {x-y: {type: string}}\n", "3:10: the name \"x-y\""),
        (
            "id: a\nsequence:\n  - id: b\n    sequence: [{id: catch, op: c}]\n    catch: {op: d}\n",
            "4:21: the id `catch` is also that",
        ),
        (
            "id: a\nstate: {initial: x, states: [{id: b, op: c}]}\n",
            "2:18: there is no state `x`; there are: b",
        ),
        (
            "id: a\nstate: {initial: b, states: [{id: b, op: c, transitions: [{to: z}]}]}\n",
            "2:64: there is no state `z`",
        ),
        (
            "id: a\nstate: {initial: b, states: [{id: b, op: c, transitions: [{to: b}, {to: b}]}]}\n",
            "2:68: this transition is never taken",
        ),
        ("id: a\ninclude: b.yaml\n", "2:10: b.yaml is not among the files"),
        ("id: a\ninclude: ../b.yaml\n", "2:10: cannot include \"../b.yaml\": it lies outside"),
        ("id: a\ninclude: main.yaml\n", "2:10: a recipe cannot include itself: main.yaml -> main.yaml"),
        ("- a\n", "1:1: a recipe is a map, not a list"),
        (
            "id: a\nop: command\ninputs: {argv: [echo]}\n",
            "3:16: `argv` must be an input, such as { type: string }, not a list; at the root, what its op or included \
             recipe takes stands in `with`",
        ),
        (
            "id: a\nop: b\ninputs: {n: {tipe: string}}\n",
            "3:14: unknown key `tipe` in an input; is `type` meant?",
        ),
        ("id: a\nop: [b]\n", "2:5: `op` must be a name, not a list"),
    ] {
        let found = mistakes(&[("main.yaml", text)]);
        if !found.contains(says) || !found.lines().all(|line| line.starts_with("main.yaml:")) {
            wrong.push(format!("{text}says: {found}not:  {says}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn several_mistakes_are_told_at_once_in_their_order() {
    let found = mistakes(&[(
        "main.yaml",
        "id: a\nsequence:\n  - {id: b, op: c, inputs: {x: \"${{ nope }}\", y: \"${{ 1 + 'a' + }}\"}}\n  - {id: b, op: d, when: \"${{ sequence.z.outputs }}\"}\n",
    )]);
    let places: Vec<&str> = found.lines().map(|line| line.split(": ").next().expect("a place")).collect();
    assert_eq!(places, ["main.yaml:3:32", "main.yaml:3:50", "main.yaml:4:10", "main.yaml:4:26"], "{found}");
    let found = mistakes(&[("main.yaml", "id: a\nop: b\nfoo: 1\nbar: 2\ntimeout: x\n")]);
    assert_eq!(found.lines().count(), 3, "{found}");
    let many: String = (0..100).map(|n| format!("x{n}: 1\n")).collect();
    assert_eq!(mistakes(&[("main.yaml", &many)]).lines().count(), 50);
}

#[test]
fn cycles_of_include_and_recipes_over_the_limits_are_refused() {
    let loop_of_two = [
        ("main.yaml", "id: a\ninclude: b.yaml\n"),
        ("b.yaml", "id: b\nsequence: [{id: c, include: main.yaml}]\n"),
    ];
    let found = mistakes(&loop_of_two);
    assert!(
        found.contains("b.yaml:2:29: a recipe cannot include itself: main.yaml -> b.yaml -> main.yaml"),
        "{found}"
    );
    // Doubling at each level: 2^20 nodes from 20 short files.
    let mut doubling = vec![(
        "main.yaml".to_owned(),
        "id: a\nparallel: [{id: x, include: f1.yaml}, {id: y, include: f1.yaml}]\n".to_owned(),
    )];
    for n in 1..20 {
        let text = format!(
            "id: a\nparallel: [{{id: x, include: f{m}.yaml}}, {{id: y, include: f{m}.yaml}}]\n",
            m = n + 1
        );
        doubling.push((format!("f{n}.yaml"), text));
    }
    doubling.push(("f20.yaml".to_owned(), "id: a\nop: b\n".to_owned()));
    let files: Vec<(&str, &str)> =
        doubling.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
    let found = mistakes(&files);
    assert!(found.contains("nested more than 32 deep") || found.contains("more than 1000 nodes"), "{found}");

    let nodes = |n: usize| {
        let list: String = (0..n).map(|n| format!("  - {{id: n{n}, op: o}}\n")).collect();
        format!("id: a\nsequence:\n{list}")
    };
    assert_eq!(compiled(&nodes(MAX_NODES - 1)).nodes, MAX_NODES);
    assert!(mistakes(&[("main.yaml", &nodes(MAX_NODES))]).contains("more than 1000 nodes"));
    let nested = |n: usize| {
        format!("id: a\nsequence: [{}{{id: z, op: o}}{}]\n", "{id: a, sequence: [".repeat(n), "]}".repeat(n))
    };
    compiled(&nested(MAX_NESTING - 2));
    assert!(mistakes(&[("main.yaml", &nested(MAX_NESTING - 1))]).contains("nested more than 32 deep"));
    for deep in [1_000, 10_000] {
        mistakes(&[("main.yaml", &nested(deep))]);
        let parentheses =
            format!("id: a\nop: b\nwhen: ${{{{ {}1{} }}}}\n", "(".repeat(deep), ")".repeat(deep));
        assert!(mistakes(&[("main.yaml", &parentheses)]).contains("at most 1024 (1 KiB)"));
    }
    let large = format!("id: a\nop: b\ndescription: {}\n", "x".repeat(MAX_RECIPE_BYTES));
    assert!(mistakes(&[("main.yaml", &large)]).contains("256 KiB"));
    let half = format!("id: a\nop: b\ndescription: {}\n", "x".repeat(MAX_RECIPE_BYTES / 2));
    let main = format!("{half}include: b.yaml\n").replace("op: b\n", "");
    assert!(mistakes(&[("main.yaml", &main), ("b.yaml", &half)]).contains("in all"));
    // AP-17: what is pinned is JSON text, in which quotes take twice the room; what is checked can be submitted.
    let quotes = |n: usize| format!("id: a\nop: b\ndescription: '{}'\n", "\"".repeat(n));
    let found = mistakes(&[("main.yaml", &quotes(MAX_RECIPE_BYTES / 2))]);
    assert!(found.contains("as JSON text"), "{found}");
    let most = bundle(&[("main.yaml", &quotes(MAX_RECIPE_BYTES / 2 - 100))]);
    assert!(most.to_json().len() <= crate::submission::recipe::MAX_BUNDLE_BYTES);
    compile(&most).unwrap_or_else(|mistakes| panic!("{mistakes}"));
    let unused = mistakes(&[("main.yaml", "id: a\nop: b\n"), ("b.yaml", "id: b\nop: c\n")]);
    assert!(unused.contains("b.yaml: is in the bundle, but nothing includes it"), "{unused}");
}

/// RP-13
#[test]
fn a_value_adds_no_arguments_keys_needs_or_tasks_and_is_not_looked_at_again() {
    struct Evil(String);
    impl Scope for Evil {
        fn read(&self, reference: Reference) -> Option<JsonText> {
            (reference == Reference::Outputs(NodeNumber(1))).then(|| self.0.as_str().into())
        }
    }
    let recipe = compiled(concat!(
        "id: a\nsequence:\n  - {id: one, op: a}\n  - id: two\n    op: container\n    inputs:\n",
        "      image: \"${{ sequence.one.outputs }}\"\n",
        "      command: [echo, \"${{ sequence.one.outputs }}\", \"x-${{ sequence.one.outputs }}\"]\n",
        "      env: {A: \"${{ sequence.one.outputs }}\", B: \"$${{ sequence.one.outputs }}\", C: \"${{ secrets.S }}\"}\n",
        "    execution_needs: {image: \"${{ sequence.one.outputs }}\"}\n",
    ));
    let Body::Sequence(nodes) = &recipe.root.body else { panic!("a sequence") };
    let Body::Op { inputs, .. } = &nodes[1].body else { panic!("an op") };
    for evil in [
        "${{ sequence.one.outputs }}",
        "${{ secrets.S }}",
        "{{ 1 }} ${x} $(id) `id`",
        "a\"]\nimage: evil\n- b: c",
        "\", \"--privileged",
        "'; rm -rf / #",
        "\\u0022}}",
    ] {
        let scope = Evil(serde_json::Value::from(evil).to_string());
        let rendered = inputs.render(&scope).expect("rendered");
        let value: serde_json::Value = serde_json::from_str(&rendered.text).expect("JSON");
        assert_eq!(
            value,
            serde_json::json!({
                "image": evil,
                "command": ["echo", evil, format!("x-{evil}")],
                "env": {"A": evil, "B": "${{ sequence.one.outputs }}", "C": "${{ secrets.S }}"},
            })
        );
        assert_eq!(rendered.secrets.len(), 1, "only what the author wrote is a secret");
        let resolved = rendered.with_secrets(|name| (name == "S").then(|| "hush".to_owned())).expect("known");
        let value: serde_json::Value = serde_json::from_str(&resolved).expect("JSON");
        assert_eq!((value["env"]["C"].as_str(), value["env"]["A"].as_str()), (Some("hush"), Some(evil)));
        assert_eq!(nodes[1].needs.image.as_ref().expect("image").text(&scope).expect("text"), evil);
    }
    // A text that looks like a secret is not the same input as the secret.
    let literal = Evil("\"${{ secrets.S }}\"".to_owned());
    let plain = compiled(
        "id: a\nsequence: [{id: one, op: a}, {id: two, op: b, inputs: {c: \"${{ sequence.one.outputs }}\"}}]\n",
    );
    let secret = compiled(
        "id: a\nsequence: [{id: one, op: a}, {id: two, op: b, inputs: {c: \"${{ secrets.S }}\"}}]\n",
    );
    let canonical = |recipe: &Recipe| {
        let Body::Sequence(nodes) = &recipe.root.body else { panic!("a sequence") };
        let Body::Op { inputs, .. } = &nodes[1].body else { panic!("an op") };
        inputs.render(&literal).expect("rendered")
    };
    assert_eq!(canonical(&plain).text, canonical(&secret).text);
    assert_ne!(canonical(&plain).canonical(), canonical(&secret).canonical());
    assert!(
        canonical(&secret)
            .with_secrets(|_| None)
            .expect_err("unknown")
            .to_string()
            .contains("--secret S=FILE")
    );
}
