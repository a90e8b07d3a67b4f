// Drives the plan picker in a Chromium. The test beside it starts everything and judges.
//   node picker.mjs PLAYWRIGHT CHROMIUM URL FOLDER

const [playwright, executablePath, url, folder] = process.argv.slice(2);
const { chromium } = (await import(playwright)).default;
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
const page = await browser.newPage({ viewport: { width: 800, height: 700 } });
const errors = [];
page.on("pageerror", (error) => errors.push(error.message));
const say = (what) => console.log(JSON.stringify(what));
const shot = (name) => page.screenshot({ path: `${folder}/${name}.png` });
const text = (id) => page.locator(`#${id}`).textContent();

await page.goto(url);
await page.locator("label.plan").first().waitFor();
const plans = await page.locator("label.plan").evaluateAll((labels) => labels.map((label) => ({
  plan: label.querySelector("input").value,
  disabled: label.querySelector("input").disabled,
  why: label.querySelector(".why")?.textContent ?? null,
})));
await page.locator("input[value=small]").check();
await page.locator("#create").click();
await page.locator("#status:not(:empty)").waitFor();
await shot("plans");
say({ plans, status: await text("status") });

// A user can change a page. The answer is a refusal.
await page.locator("input[value=large]").evaluate((input) => { input.disabled = false; });
await page.locator("input[value=large]").check();
await page.locator("#create").click();
await page.locator("#alert:not(:empty)").waitFor();
await shot("refused");
say({ alert: await text("alert"), status: await text("status") });

// The test takes the hub away, then says so.
process.stdin.resume();
await new Promise((said) => process.stdin.once("data", said));
await page.reload();
await page.locator("#alert:not(:empty)").waitFor();
await shot("unavailable");
say({ alert: await text("alert"), plans: await page.locator("label.plan").count() });
await page.locator("label.plan").first().waitFor({ timeout: 60_000 });
say({ alert: await text("alert"), plans: await page.locator("label.plan").count(), errors });
await browser.close();
process.exit(0);
