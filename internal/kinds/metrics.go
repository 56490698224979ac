package kinds

// MostMetrics is how many metrics a HorizontalPodAutoscaler may have for anything to be scaled by them: each of them is calculated for each pod, and Kubernetes sets no limit.
const MostMetrics = 50
