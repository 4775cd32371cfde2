//! JSON Schemas: registered by route, kept by digest, pinned on the jobs that are submitted afterwards.

use std::collections::BTreeMap;

use super::bench::Bench;
use crate::{
    domain::Route,
    ports::recipe::{MAX_SCHEMA_TASKS, RouteSchemas, SchemaDigests, SchemaText},
    testing::harness::{StoreHarness, TestWorkflow},
};

fn schema(digit: char, text: &str) -> SchemaText {
    SchemaText { digest: digit.to_string().repeat(64), text: text.into() }
}

fn input(schema: SchemaText) -> RouteSchemas {
    RouteSchemas { input: Some(schema), output: None }
}

impl Bench<'_> {
    async fn register(&self, task: &str, schemas: &RouteSchemas) -> bool {
        let route = Route::recipe("recipe", task);
        self.recipes.register_schema(&self.namespace, &route, schemas).await.expect("the store answers")
    }
}

/// The same again changes nothing; a text comes back as it was first written.
pub async fn a_schema_is_registered_once(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let first = schema('a', r#"{"b": 1.50, "a": true}"#);
    assert!(bench.register("", &input(first.clone())).await);
    assert!(!bench.register("", &input(first.clone())).await);
    // The digest says that it is the same.
    assert!(!bench.register("", &input(schema('a', "{}"))).await);
    let both = RouteSchemas { input: Some(first.clone()), output: Some(first.clone()) };
    assert!(bench.register("", &both).await);
    assert!(bench.register("", &RouteSchemas::default()).await);
    let digests = ["a".repeat(64), "b".repeat(64)];
    let texts = bench.recipes.schema_texts(&bench.namespace, &digests).await.expect("the store answers");
    assert_eq!(texts, [first]);
}

/// Whatever is registered later, and whoever holds the job.
pub async fn a_job_keeps_the_schemas_that_it_was_submitted_under(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let before = bench.held_recipe().await;
    assert_eq!(bench.recipe(&before).await.schemas, BTreeMap::new());
    bench.register("", &input(schema('a', "true"))).await;
    let op = RouteSchemas { input: None, output: Some(schema('b', "{}")) };
    bench.register("resize", &op).await;
    let grant = bench.held_recipe().await;
    let digests = |input: Option<char>, output: Option<char>| SchemaDigests {
        input: input.map(|digit| digit.to_string().repeat(64)),
        output: output.map(|digit| digit.to_string().repeat(64)),
    };
    let under = BTreeMap::from([
        (String::new(), digests(Some('a'), None)),
        ("resize".to_owned(), digests(None, Some('b'))),
    ]);
    assert_eq!(bench.recipe(&grant).await.schemas, under);
    bench.register("", &input(schema('c', "{}"))).await;
    harness.expire(grant.authority.job).await;
    let taken = bench.recover(1).await.takeovers.remove(0).grant;
    assert_eq!(bench.recipe(&taken).await.schemas, under);
    assert_eq!(bench.recipe(&before).await.schemas, BTreeMap::new());
    // A run of a workflow is a job like any other.
    let workflow = TestWorkflow::new(&bench.namespace, "pipeline", super::bench::recipe());
    harness.define_workflow(&workflow).await;
    let run = bench.claim(bench.run_of("pipeline").await).await;
    assert_eq!(bench.recipe(&run).await.schemas[""], digests(Some('c'), None));
}

/// Nobody fills a job's row with digests of ops that it does not have.
pub async fn only_so_many_recipes_and_ops_have_schemas(harness: &dyn StoreHarness) {
    let bench = Bench::new(harness);
    let handler = Route::handler("work");
    let refused = bench.recipes.register_schema(&bench.namespace, &handler, &RouteSchemas::default()).await;
    assert!(refused.is_err(), "{refused:?}");
    for n in 0..MAX_SCHEMA_TASKS {
        assert!(bench.register(&format!("op-{n}"), &input(schema('a', "true"))).await);
    }
    let one_more = Route::recipe("recipe", "one-more");
    let refused =
        bench.recipes.register_schema(&bench.namespace, &one_more, &input(schema('a', "true"))).await;
    assert!(refused.is_err(), "{refused:?}");
    assert!(bench.register("op-0", &input(schema('b', "true"))).await, "what is there can be changed");
}
