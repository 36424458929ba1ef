package policy

// API names how an upstream tells its quota: which headers it sends, what they
// mean, and what its refusals speak of. Package upstream has a reader for each.
type API string

// The APIs this version can read.
const (
	// APIAuto goes by the headers that are there, for an upstream that is none of
	// the others. A reset without a unit is taken for a date if it is one, else for
	// seconds.
	APIAuto API = "auto"
	// APIGitHub sends X-RateLimit-*, an hour per resource; secondary limits refuse
	// with quota left.
	APIGitHub API = "github"
	// APIIETF sends RateLimit and RateLimit-Policy, by any draft of the IETF.
	APIIETF API = "ietf"
	// APIShopify tells how full its bucket is in X-Shopify-Shop-Api-Call-Limit, and
	// the points of GraphQL in the body.
	APIShopify API = "shopify"
	// APIStripe says in Stripe-Rate-Limited-Reason why it refused.
	APIStripe API = "stripe"
	// APIHubSpot sends X-HubSpot-RateLimit-*: a rolling interval, and a day.
	APIHubSpot API = "hubspot"
	// APISlack tells nothing but Retry-After.
	APISlack API = "slack"
	// APIX sends X-Rate-Limit-*, a window of 15 minutes.
	APIX API = "x"
	// APIOpenAI sends X-RateLimit-* for requests and tokens.
	APIOpenAI API = "openai"
	// APIAnthropic sends Anthropic-RateLimit-* for requests and tokens.
	APIAnthropic API = "anthropic"
	// APIZendesk sends the account's quota, and that of single endpoints.
	APIZendesk API = "zendesk"
	// APIDiscord sends X-RateLimit-* for a bucket that the reply names.
	APIDiscord API = "discord"
	// APIJira sends X-RateLimit-* and says in RateLimit-Reason why it refused.
	APIJira API = "jira"
)

// APIs lists all of them, in the order messages name them.
func APIs() []API {
	return []API{
		APIAuto, APIGitHub, APIIETF, APIShopify, APIStripe, APIHubSpot, APISlack,
		APIX, APIOpenAI, APIAnthropic, APIZendesk, APIDiscord, APIJira,
	}
}
