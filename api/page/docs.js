// The API's documentation: Swagger UI over our schema.

const address = new URL("openapi.json", document.baseURI).href;

SwaggerUIBundle({
  url: address,
  responseInterceptor: (response) => {
    if (response.ok && response.url === address) response.text = asVersion30(response.text);
    return response;
  },
  dom_id: "#api",
  deepLinking: true,
  validatorUrl: null, // nothing is asked of another server
  presets: [SwaggerUIBundle.presets.apis],
  layout: "BaseLayout",
});

/** The same API in OpenAPI 3.0. Of 3.1 Swagger UI resolves references with a library that stops the page for seconds
 *  wherever one opens an operation of a schema as large as ours; of 3.0 in a third of that. */
function asVersion30(text) {
  return JSON.stringify({ ...downgraded(JSON.parse(text)), openapi: "3.0.3" });
}

/** A part of it, with what 3.0 says in other words. */
export function downgraded(node) {
  if (Array.isArray(node)) return node.map(downgraded);
  if (node === null || typeof node !== "object") return node;
  const { const: only, prefixItems, anyOf, ...found } = Object.fromEntries(
    Object.entries(node).map(([name, value]) => [name, downgraded(value)]),
  );
  if (only !== undefined) found.enum = [only];
  if (prefixItems) found.items = { anyOf: prefixItems };
  if (anyOf) {
    const others = anyOf.filter((one) => one.type !== "null");
    found[others.length > 1 ? "anyOf" : "allOf"] = others;
    if (others.length < anyOf.length) found.nullable = true;
  }
  for (const [bound, exclusive] of [["minimum", "exclusiveMinimum"], ["maximum", "exclusiveMaximum"]]) {
    if (typeof found[exclusive] === "number") [found[bound], found[exclusive]] = [found[exclusive], true];
  }
  return found;
}
